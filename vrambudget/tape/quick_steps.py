"""Steps that are not on the tape, run through an allocator with two pools: most requests in turns.

Most requests of a decoding step are small: hidden states of one token, the same in each layer and
each step. Its small requests are cut into turns, one a layer. What a turn does to the small pool
follows from the pool's free blocks, the blocks that the turn frees, and its sizes; where those
were met before, what came of it is put in place, or of all turns of a step together. So a step
costs its large requests and a look-up or some. Sizes never fall in the middle of a stretch
(`Step.is_inner`): what is requested there is at its most at its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from vrambudget.tape.allocator import SIZE_SHIFT, CachingAllocator
from vrambudget.tape.full_card import OutOfDeviceMemoryError
from vrambudget.tape.run_steps import Run, Watch
from vrambudget.tape.segment_sizes import SMALL
from vrambudget.tape.steps import CARRIED, Step, Steps
from vrambudget.tape.two_pools import TwoPools, units

_FEWEST = 24  # small events of a turn, but for the last
_LARGE = 1 << 50  # stands for an event of the large pool


def run_steps(
    steps: Steps,
    allocator: CachingAllocator,
    sizes: Sequence[int],
    position: int,
    watch: Watch | None = None,
) -> None:
    """Run all steps, as if at an event of the tape. Raises OutOfDeviceMemoryError."""
    run: Run
    if isinstance(allocator, TwoPools):
        run = _QuickRun(steps, allocator, sizes, position)
    else:
        run = Run(steps, allocator, sizes, position)
    run.watch = watch
    run.run()


@dataclass(slots=True)
class _Turn:
    """A part of a step: small events, with large ones between them.

    `shape` has them by names of its own: i for the i-th that is born, ~i for its end,
    ~(CARRIED + i) for the i-th end of what was there before; then sizes, 0 for those that grow.
    """

    events: list[int] = field(default_factory=list)  # the small ones
    shape: list[int] = field(default_factory=list)
    born: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)  # that were there: the step's, or CARRIED + c
    left: list[int] = field(default_factory=list)
    growing: list[int] = field(default_factory=list)
    number: int = 0  # of the shape
    small: list[int] = field(default_factory=list)  # the shape, as `TwoPools.serve_small` reads it

    def add(self, event: int) -> None:
        """Add a small event."""
        self.events.append(event)
        if event >= 0:
            self.shape.append(len(self.born))
            self.born.append(event)
        elif ~event in self.born:
            self.shape.append(~self.born.index(~event))
        else:
            self.shape.append(~(CARRIED + len(self.freed)))
            self.freed.append(~event)

    def close(
        self, needs: Sequence[int], growing: set[int], shapes: dict[tuple[int, ...], int]
    ) -> None:
        """Note what it leaves, and number it: turns of one shape have one number."""
        ends = {~event for event in self.events if event < 0}
        self.left = [i for i in self.born if i not in ends]
        self.growing = [i for i in self.born if i in growing]
        past = CARRIED - len(self.born)
        own = (event for event in self.shape if event != _LARGE)
        self.small = [event if event > ~CARRIED else event + past for event in own]
        shape = *self.shape, *(0 if i in growing else needs[i] for i in self.born)
        self.number = shapes.setdefault(shape, len(shapes))

    def levels(self, sizes: Sequence[int], freed: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Return the most units more than before it, beside each large event, and in the end."""
        needs = [units(sizes[i]) for i in self.born]
        beside, level = [0], 0
        for event in self.shape:
            if event == _LARGE:
                beside.append(level)
                continue
            if event >= 0:
                level += needs[event]
            else:
                level -= needs[~event] if event > ~CARRIED else freed[~event - CARRIED]
            beside[-1] = max(beside[-1], level)
        return tuple(beside), level


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a turn does, or all: free blocks, blocks of what is left, units more than before."""

    free: tuple[int, ...]
    number: int  # of these free blocks
    blocks: tuple[int, ...]
    change: int
    beside: tuple[int, ...]  # the most until its first large event, until its second, ...


@dataclass(frozen=True, slots=True)
class _Plan:
    """A step as turns; it holds for steps with the same large storages."""

    turns: list[_Turn]
    large: list[int]  # events
    born: list[int]  # storages that are carried on
    died: list[int]  # numbers of what was carried into the step
    may_become_large: list[int]
    is_steady: bool  # the next step finds large what this one found
    small_there: list[int]  # numbers of what was carried into the step, is small, and dies in it
    left: list[int]  # small storages of the step that are there after it
    wholes: dict[tuple[int, ...], _Outcome] = field(default_factory=dict)  # of all turns together


class _QuickRun(Run):
    """Runs steps turn by turn, or as a whole where all turns were met together."""

    allocator: TwoPools

    def __init__(
        self, steps: Steps, allocator: TwoPools, sizes: Sequence[int], position: int
    ) -> None:
        super().__init__(steps, allocator, sizes, position)
        self.plans: dict[int, _Plan] = {}
        self.shapes: dict[tuple[int, ...], int] = {}
        self.outcomes: dict[tuple[int, ...], _Outcome] = {}
        self.levels: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}  # by sizes
        self.free: tuple[int, ...] | None = None  # in the small pool; None: as the allocator has it
        self.stands: tuple[int, ...] | None = None  # what the allocator has, where that is known
        self.numbers: dict[tuple[int, ...], int] = {}  # of free blocks

    def step(self, step: Step) -> None:
        """Run one step."""
        if not step.is_inner:
            self.plans.clear()
            self._run_plainly(step)
            return
        allocator, now, sizes, carried = self.allocator, step.sizes, self.sizes, self.carried
        plan = self._plan(step)
        if not plan.large:  # each step is another for the small pool
            self._run_plainly(step)
            return
        before = allocator.free_small if self.free is None else self.free
        allocator.begin()
        try:
            whole = self._run_small(plan, step, before)
            requested = sum([now[i] for i in plan.born])
            requested -= sum([sizes[carried[number]] for number in plan.died])
            large = self.named(plan.large)
            allocator.end(large, sizes, whole.beside, small=whole.change, requested=requested)
        except OutOfDeviceMemoryError:
            allocator.undo()
            self.free, self.stands = before, None
            self._run_plainly(step)
            return
        self.carry(step)

    def _run_plainly(self, step: Step) -> None:
        self.settle()
        self.stands = None
        super().step(step)

    def settle(self) -> None:
        """Let the allocator's small pool have the blocks that turns so far left free."""
        if self.free is not None:
            if self.free is not self.stands:
                self.allocator.put_small_pool(self.free)
            self.stands, self.free = self.free, None

    def _run_small(self, plan: _Plan, step: Step, free: tuple[int, ...]) -> _Outcome:
        """Serve a step's small events, or put in place what came of them; `beside` is of all."""
        placed, carried, made = (
            self.allocator.placed,
            self.carried,
            self.allocator.small_segments_made,
        )
        number = self.numbers.setdefault(free, len(self.numbers))
        there = [placed[carried[c]] for c in plan.small_there]
        key = number, *there, *[units(step.sizes[i]) for i in plan.may_become_large]
        whole = plan.wholes.get(key)
        if whole is None:
            whole = self._run_turns(plan, step, free, number)
            if self.allocator.small_segments_made == made:
                plan.wholes[key] = whole
        else:
            for i, block in zip(plan.left, whole.blocks, strict=True):
                placed[self.first + i] = block
        self.free = whole.free
        return whole

    def _run_turns(self, plan: _Plan, step: Step, free: tuple[int, ...], number: int) -> _Outcome:
        """Serve a step's small events turn by turn."""
        placed, outcomes, first, now = self.allocator.placed, self.outcomes, self.first, step.sizes
        beside, level = [0], 0
        for turn in plan.turns:
            there = [placed[storage] for storage in self._freed(turn)]
            key = turn.number, number, *there, *[units(now[i]) for i in turn.growing]
            outcome = outcomes.get(key)
            if outcome is None:
                self.free = free
                outcome = self._served(turn, now, key, there)
            for i, block in zip(turn.left, outcome.blocks, strict=True):
                placed[first + i] = block
            free, number = outcome.free, outcome.number
            beside[-1] = max(beside[-1], level + outcome.beside[0])
            beside += [level + most for most in outcome.beside[1:]]
            level += outcome.change
        blocks = tuple(placed[first + i] for i in plan.left)
        return _Outcome(free, number, blocks, level, tuple(beside))

    def _served(
        self, turn: _Turn, now: Sequence[int], key: tuple[int, ...], there: Sequence[int]
    ) -> _Outcome:
        """Serve a turn that was not met before; the blocks `there` end in it."""
        allocator = self.allocator
        made = allocator.small_segments_made
        freed = [block >> SIZE_SHIFT for block in there]
        sizes = turn.number, *freed, *key[2 + len(freed) :]
        if sizes not in self.levels:
            self.levels[sizes] = turn.levels(now, freed)
        beside, change = self.levels[sizes]
        self.settle()
        self.stands = None
        got = allocator.serve_small(turn.small, [units(now[i]) for i in turn.born], there)
        free = self.stands = allocator.free_small
        number = self.numbers.setdefault(free, len(self.numbers))
        blocks = tuple(got[turn.born.index(i)] for i in turn.left)
        outcome = _Outcome(free, number, blocks, change, beside)
        if allocator.small_segments_made == made:
            self.outcomes[key] = outcome
        return outcome

    def _freed(self, turn: _Turn) -> list[int]:
        """Return the storages that were there before a turn and die in it."""
        first, carried = self.first, self.carried
        return [first + i if i < CARRIED else carried[i - CARRIED] for i in turn.freed]

    def _plan(self, step: Step) -> _Plan:
        """Return a step's plan, that of the steps before it while it holds."""
        plan = self.plans.get(id(step.pattern))
        if plan is not None and all(units(step.sizes[i]) <= SMALL for i in plan.may_become_large):
            return plan
        if plan is not None:
            self.plans.clear()
        placed = self.allocator.placed
        carried = [placed[storage] >> SIZE_SHIFT > SMALL for storage in self.carried]
        plan = _planned(step, carried, self.shapes)
        if plan.is_steady:
            self.plans[id(step.pattern)] = plan
        return plan


def _planned(step: Step, carried: Sequence[bool], shapes: dict[tuple[int, ...], int]) -> _Plan:
    """Return a step's plan; `carried`: which of what is carried into it are large."""
    needs = [units(nbytes) for nbytes in step.sizes]
    turn, turns, large, died = _Turn(), list[_Turn](), list[int](), list[int]()
    for event in step.pattern.events:
        old = ~event - CARRIED
        if old >= 0:
            died.append(old)
        if carried[old] if old >= 0 else needs[max(event, ~event)] > SMALL:
            if len(turn.events) >= _FEWEST:
                turns.append(turn)
                turn = _Turn()
            large.append(event)
            turn.shape.append(_LARGE)
        else:
            turn.add(event)
    turns.append(turn)
    growing = {i for i in step.growing if needs[i] <= SMALL}
    for turn in turns:
        turn.close(needs, growing, shapes)
    finals = step.pattern.finals
    are_large = [needs[f] > SMALL if f < CARRIED else carried[f - CARRIED] for f in finals]
    born = {final for final in finals if final < CARRIED}
    freed = dict.fromkeys(i for turn in turns for i in turn.freed)
    left = [i for turn in turns for i in turn.left if i not in freed]
    return _Plan(
        turns,
        large,
        list(born),
        died,
        list(growing),
        are_large == list(carried),
        [i - CARRIED for i in freed if i >= CARRIED],
        left,
    )
