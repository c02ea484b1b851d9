"""Decode steps, run through the allocator's two pools; small requests are served from a cache.

Why: a generation of 10,000 tokens has millions of requests, and the allocator decides each by the
free blocks that those before it left. Nearly all are small (hidden states of one token) and the
same in each layer and each step; only the growing cache's are large.

So the small requests of a step are cut into parts, one a layer. What a part does to the small pool
is a function of three things: the pool's free blocks, the blocks that the part frees, and its
sizes. Its outcome is cached by these, and so is that of all parts of a step together. A step then
costs its large requests and a look-up or two.

The two pools never share a block, so small and large requests can be served apart. Their sum has
one peak, though: an outcome says how much the small pool holds beside each large request. Requested
bytes need no such care, because sizes never fall inside a stretch (`Step.is_inner`): there a step
requests most at its end.
"""

from collections.abc import Sequence
from typing import Any

from vrambudget.tape.allocator import SIZE_SHIFT, CachingAllocator
from vrambudget.tape.full_gpu import OutOfDeviceMemoryError
from vrambudget.tape.run_steps import StepRunner, Watch
from vrambudget.tape.segment_sizes import SMALL, units
from vrambudget.tape.small_and_large_pools import SmallAndLargePools
from vrambudget.tape.step_plans import PartOutcome, StepPart, StepPlan, Whole, planned
from vrambudget.tape.steps import CARRIED, RepeatedStep, Steps


def run_steps(
    steps: Steps,
    allocator: CachingAllocator,
    sizes: Sequence[int],
    position: int,
    watch: Watch | None = None,
) -> None:
    """Run all steps, as if at an event of the tape. Raises OutOfDeviceMemoryError."""
    kind: type[StepRunner] = _QuickRun if isinstance(allocator, SmallAndLargePools) else StepRunner
    run = kind(steps, allocator, sizes, position)
    run.watch = watch
    run.run()


class _QuickRun(StepRunner):
    """Runs steps part by part, or as a whole if all of its parts were met together before."""

    allocator: SmallAndLargePools

    def __init__(
        self, steps: Steps, allocator: SmallAndLargePools, sizes: Sequence[int], position: int
    ) -> None:
        super().__init__(steps, allocator, sizes, position)
        self.plans: dict[int, StepPlan] = {}
        self.shapes: dict[tuple[int, ...], int] = {}
        self.outcomes: dict[tuple[Any, ...], PartOutcome] = {}  # by what decides them
        # The small pool's free blocks after the steps so far (None: ask the allocator), and those
        # that the allocator itself has, if known. They differ while outcomes come from the cache:
        # the allocator gets them only when it has to serve a request itself (`settle`).
        self.free: tuple[int, ...] | None = None
        self.stands: tuple[int, ...] | None = None

    def step(self, step: RepeatedStep) -> None:
        """Run one step."""
        if not step.is_inner:
            self.plans.clear()
            self._run_plainly(step)
            return
        allocator, now, sizes, carried = self.allocator, step.sizes, self.sizes, self.carried
        plan = self._plan(step)
        if not plan.large:  # the cache grows in the small pool: no step equals another
            self._run_plainly(step)
            return
        before = allocator.free_small if self.free is None else self.free
        allocator.begin()
        try:
            whole = self._run_small(plan, step, before)
            requested = sum([now[i] for i in plan.born])
            requested -= sum([sizes[carried[number]] for number in plan.died])
            allocator.end(self.named(plan.large), sizes, whole, requested=requested)
        except OutOfDeviceMemoryError:
            # Which request fails, and with how much held, only the true order of both pools tells.
            allocator.undo()
            self.free, self.stands = before, None
            self._run_plainly(step)
            return
        self.carry(step)

    def _run_plainly(self, step: RepeatedStep) -> None:
        self.settle()
        self.stands = None
        super().step(step)

    def settle(self) -> None:
        """Give the allocator's small pool the free blocks that the cached outcomes led to."""
        if self.free is not None:
            if self.free is not self.stands:
                self.allocator.put_small_pool(self.free)
            self.stands, self.free = self.free, None

    def _run_small(self, plan: StepPlan, step: RepeatedStep, free: tuple[int, ...]) -> Whole:
        """Serve a step's small events, or take their outcome from the cache."""
        placed, carried, made = (
            self.allocator.placed,
            self.carried,
            self.allocator.small_segments_made,
        )
        there = [placed[carried[c]] for c in plan.small_there]
        key = free, *there, *[units(step.sizes[i]) for i in plan.may_become_large]
        whole = plan.wholes.get(key)
        if whole is None:
            whole = self._run_parts(plan, step, free)
            # Parts that made a segment changed more than free blocks: that is not cached.
            if self.allocator.small_segments_made == made:
                plan.wholes[key] = whole
        else:
            for i, block in zip(plan.left, whole.blocks, strict=True):
                placed[self.first + i] = block
        self.free = whole.free
        return whole

    def _run_parts(self, plan: StepPlan, step: RepeatedStep, free: tuple[int, ...]) -> Whole:
        """Serve a step's small events part by part."""
        placed, first, met = self.allocator.placed, self.first, list[PartOutcome]()
        level = most = 0
        for part in plan.parts:
            met.append(outcome := self._outcome(part, step.sizes, free))
            free, most = outcome.free, max(most, level + max(outcome.beside))
            level += outcome.change
            for i, block in zip(part.left, outcome.blocks, strict=True):
                placed[first + i] = block
        blocks = tuple(placed[first + i] for i in plan.left)
        return Whole(free, blocks, level, most, tuple(met))

    def _outcome(self, part: StepPart, now: Sequence[int], free: tuple[int, ...]) -> PartOutcome:
        """Return a part's outcome, from the cache or by serving it."""
        placed, first, carried = self.allocator.placed, self.first, self.carried
        there = [placed[first + i if i < CARRIED else carried[i - CARRIED]] for i in part.freed]
        key = part.number, free, *there, *[units(now[i]) for i in part.growing]
        outcome = self.outcomes.get(key)
        if outcome is None:
            self.free = free
            outcome = self._served(part, now, key, there)
        return outcome

    def _served(
        self, part: StepPart, now: Sequence[int], key: tuple[Any, ...], there: Sequence[int]
    ) -> PartOutcome:
        """Serve a part whose outcome is not cached; it frees the blocks `there`."""
        allocator = self.allocator
        made = allocator.small_segments_made
        needs = part.needs.copy()
        for i in part.growing:
            needs[part.born.index(i)] = units(now[i])
        beside, change = part.levels(needs, [block >> SIZE_SHIFT for block in there])
        self.settle()
        got = allocator.serve_small(part.small, needs, there)
        free = self.stands = allocator.free_small
        blocks = tuple([got[at] for at in part.left_at])
        outcome = PartOutcome(free, blocks, change, beside)
        if allocator.small_segments_made == made:
            self.outcomes[key] = outcome
        return outcome

    def _plan(self, step: RepeatedStep) -> StepPlan:
        """Return a step's plan: that of the step before it until a request becomes large."""
        plan = self.plans.get(id(step.pattern))
        if plan is not None and all(units(step.sizes[i]) <= SMALL for i in plan.may_become_large):
            return plan
        if plan is not None:
            self.plans.clear()
        placed = self.allocator.placed
        carried = [placed[storage] >> SIZE_SHIFT > SMALL for storage in self.carried]
        plan = planned(step, carried, self.shapes)
        if plan.is_steady:
            self.plans[id(step.pattern)] = plan
        return plan
