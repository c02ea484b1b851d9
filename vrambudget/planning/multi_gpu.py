"""The fewest GPUs for a job, and the layouts that fit them.

Their number is doubled until the most frugal layout fits, then whole machines are tried between. A
layout whose weights, gradients and states alone are too much is not traced at all, nor one whose
few layers are. One that `estimate` refuses has no rule: it was not considered, which is not "does
not fit".

A layout fits if PyTorch runs it on the GPU with NCCL's buffers at their largest beside it. Those
that do are sorted by what they train, then by the time that a token takes beyond the arithmetic
that all share (`planning.layouts.seconds_per_sequence`).
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from vrambudget.config.job import Job
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.per_rank import nccl, unlike
from vrambudget.planning.changes import Cost, divisors
from vrambudget.planning.choices import Choice, command, fields_of
from vrambudget.planning.few_layers import FewLayers
from vrambudget.planning.layouts import (
    CHECKPOINTING,
    GOALS,
    MACHINE,
    LayoutChoice,
    Sizes,
    Traffic,
    global_batch,
    layouts,
    seconds_per_sequence,
    traffic,
)
from vrambudget.planning.lower_bound import count_parameters, least_bytes
from vrambudget.planning.recipes import FIRST_WITH_BFLOAT16, MOST_SEQUENCES
from vrambudget.planning.search import Try, largest_by, largest_that_fits
from vrambudget.planning.variants import MOST_TRACED, variant
from vrambudget.scenario import Scenario
from vrambudget.simulate import simulate
from vrambudget.tape.replay import reserved_up_to

if TYPE_CHECKING:
    from vrambudget.planning.plan import Wish


class Usage(NamedTuple):
    """What one rank of a job takes; where what tensors ask for is too much, only that."""

    peak_bytes: int  # reserved
    batch: int  # the largest that should fit, by what of this one grows with a batch
    most: int  # the same by what tensors ask for alone
    fits: bool
    host_bytes: int
    parameters: int
    trainable: int
    others: list[int]  # a rank of each other kind


def fewest(planner: "Planner", most: int) -> int:
    """Return the fewest GPUs that do, 0 for none, where one does not.

    Their number is doubled until they do, then whole machines are tried. What does not fit one
    machine's GPUs is tried on the most, which no layout takes more on.
    """
    fewer, gpus, machine = 1, 2, planner.wish.per_node or MACHINE
    if most == 1:
        return 0
    while not planner.can(gpus):
        if gpus == most or (gpus >= machine > fewer and not planner.can(most)):
            return 0
        fewer, gpus = gpus, min(2 * gpus, most)
    between = range(fewer + machine, gpus, machine) if gpus > 2 * machine else range(0)
    while between:
        middle = len(between) // 2
        if planner.can(between[middle]):
            gpus, between = between[middle], between[:middle]
        else:
            between = between[middle + 1 :]
    return gpus


class Planner:
    """Tries the layouts of one job on GPUs of one kind."""

    def __init__(
        self, scenario: Scenario, wish: "Wish", progress: Callable[[], object] = lambda: None
    ) -> None:
        assert scenario.gpu is not None  # noqa: S101 - the caller looked
        self.scenario, self.wish, self.gpu, self.progress = scenario, wish, scenario.gpu, progress
        self.limit = self.gpu.available_bytes - wish.margin_bytes
        self.tried: dict[tuple[str, int], Job | None] = {}
        self.usage: dict[Job, Usage] = {}
        self.usual = dict[tuple[str, bool], int]()  # by kind: the last layout's largest batch
        self.refused = Counter[str]()  # by reason: layouts that have no rule
        self.modelled_layouts = set[str]()
        self.parameters = count_parameters(scenario)
        self.few_layers = FewLayers(scenario)

    def can(self, gpus: int) -> bool:
        """Return whether any layout fits so many GPUs; of several, the most frugal are tried."""
        ways = self._ways(gpus)
        frugal = [layout for layout in ways if layout.is_most_frugal]
        return any(self._choice(layout) is not None for layout in frugal or reversed(ways))

    def choices(self, gpus: int) -> list[Choice]:
        """Return the layouts that fit so many GPUs, the cheapest first."""
        return self._found(gpus, self._choice)

    def _found(self, gpus: int, find: Callable[[LayoutChoice], Choice | None]) -> list[Choice]:
        """Return what `find` has of the ways that may pay, the cheapest first.

        A layout that fits is not looked for with checkpointing where running forward again alone
        takes longer than what it costs without.
        """
        found = dict[str, Choice]()
        again_seconds = seconds_per_sequence(self.gpu.key, Traffic(0), self._again_flops(gpus))
        for layout in self._ways(gpus):
            without = found.get(layout.name.removesuffix(f", {CHECKPOINTING}"))
            pays = without is None or again_seconds < self._seconds(without)
            if pays and (choice := find(layout)):
                found[layout.name] = choice
        return sorted(found.values(), key=self._cost)

    def not_considered(self) -> tuple[str, ...]:
        """Return why layouts were not considered, the most frequent reason first."""
        return tuple(reason for reason, _ in self.refused.most_common())

    def largest(self, gpus: int) -> list[Choice]:
        """Return them with the largest batch that fits, where none was named.

        A pipeline keeps its batch: it has the sequences of all ranks.
        """
        return self._found(gpus, self._largest)

    def most_frugal(self, gpus: int) -> Choice | None:
        """Return the most frugal layout that has rules, with its largest batch, if it fits."""
        frugal = [layout for layout in self._ways(gpus) if layout.is_most_frugal]
        for trained in reversed(GOALS[self.wish.goal]):  # the fewest parameters first
            ways = [layout for layout in frugal if layout.trains == trained]
            found = next(filter(None, map(self._largest, ways)), None)
            if found is not None or any(way.name in self.modelled_layouts for way in ways):
                return found
        return None

    def _largest(self, layout: LayoutChoice) -> Choice | None:
        each = self.wish.per_step
        has_batch = each is None and {"batch", "grad_accum"} & {*self.wish.named}
        if "microbatches" in layout.fields or has_batch:
            return self._choice(layout)
        choice, usual = None, self.usual.get(layout.kind, 0)
        with suppress(VramBudgetError):  # which a batch of one may not meet
            is_near = usual > (each is None) and self._is_wanted(layout)
            if is_near and self._may_fit(job := self._job(layout)):
                choice = self._searched(layout, job, usual)
        if choice is None and (first := self._first(layout)):
            choice = self._searched(layout, first, 1)
        self.usual[layout.kind] = choice.fields.get("batch", 1) if choice else 0
        return choice

    def _searched(self, layout: LayoutChoice, job: Job, start: int) -> Choice | None:
        """Return a layout with the largest batch that fits; the first try is near `start`."""
        each = self.wish.per_step and self.wish.per_step // layout.gpus  # a rank's in a step
        sizes = range(1, MOST_SEQUENCES + 1) if each is None else divisors(each)
        tried, most = dict[int, Job](), MOST_SEQUENCES

        def attempt(batch: int) -> Try:
            nonlocal most
            times = job.grad_accum if each is None else each // batch
            base = variant(replace(self.scenario, job=job), batch=batch)
            tried[batch] = here = variant(base, grad_accum=times).job
            few = self._traced(here)
            least = self.few_layers.least_bytes(few, pays=True) if batch > most else 0
            if least > self._available_bytes(here):
                return Try(least, 0, fits=False)
            usage = self._usage(here)
            most = usage.most if usage.fits else most
            return Try(usage.peak_bytes, 0, usage.fits, usage.batch)

        batch = largest_that_fits(sizes, attempt, start=start, limit=self.limit)
        self.modelled_layouts.add(layout.name)
        # Where ranks differ, another may reserve more than the first.
        for smaller in sorted((n for n in tried if n <= (batch or 0)), reverse=True):
            if choice := self._of_all_ranks(layout, tried[smaller]):
                return choice
        return None

    def _of_all_ranks(self, layout: LayoutChoice, job: Job) -> Choice | None:
        """Return a layout if it fits all ranks."""
        first = self._usage(job)
        others = (job.model_copy(update={"rank": rank}) for rank in first.others if first.fits)
        ranks = [first, *map(self._usage, others)]
        if not all(usage.fits for usage in ranks):
            return None
        return self._of(layout, job, max(ranks, key=lambda usage: usage.peak_bytes))

    def _ways(self, gpus: int) -> list[LayoutChoice]:
        has_bfloat16 = self.gpu.compute_capability >= FIRST_WITH_BFLOAT16
        ways = layouts(
            self.scenario.job,
            gpus,
            self.wish.goal,
            has_bfloat16=has_bfloat16,
            per_node=self.wish.per_node or MACHINE,
            autocast=self.wish.autocast,
            fsdp_wrap="torchtitan" if self.scenario.config.model_type == "titan" else None,
        )
        return [way for way in ways if self.wish.offload or not way.fields.get("cpu_offload")]

    def _choice(self, layout: LayoutChoice) -> Choice | None:
        """Return a layout that fits, None for one that does not or cannot be."""
        job = self._first(layout)
        return self._of_all_ranks(layout, job) if job else None

    def _first(self, layout: LayoutChoice) -> Job | None:
        """Return the job of a layout that fits the first rank, None for others: tried once."""
        key = layout.name, layout.gpus
        if key not in self.tried:
            try:
                self.tried[key] = self._tried(layout)
            except VramBudgetError as error:  # this model or this job cannot be run so
                self.tried[key] = None
                if isinstance(error, NotModelledError):
                    self.refused[error.message] += 1
        return self.tried[key]

    def _job(self, layout: LayoutChoice) -> Job:
        changed = self.scenario.job.changed({**layout.fields, "ranks": layout.gpus, "rank": 0})
        return changed.resolve(self.scenario.config_of_job)

    def _tried(self, layout: LayoutChoice) -> Job | None:
        """Return the job of a layout that fits the first rank."""
        self.progress()
        if not self._is_wanted(layout):
            return None
        job = self._job(layout)
        fits = self._may_fit(job, pays=self.usual.get(layout.kind) == 0) and self._usage(job).fits
        self.modelled_layouts.add(layout.name)
        return job if fits else None

    def _may_fit(self, job: Job, *, pays: bool = False) -> bool:
        """Return whether the lower bound of what a job takes is available."""
        available = self._available_bytes(job)
        trainable = self.parameters if job.lora_rank is None else 0
        least = least_bytes(job, self.parameters, trainable)
        return least <= available and self.few_layers.least_bytes(job, pays=pays) <= available

    def _is_wanted(self, layout: LayoutChoice) -> bool:
        """Return whether a recipe may be of this layout; a job that cannot be is refused later."""
        try:
            return self.wish.suits(self._job(layout))
        except NotModelledError:
            return True

    def _usage(self, job: Job) -> Usage:
        """Return what a job's rank takes."""
        job = self._traced(job)
        if job not in self.usage:
            self.progress()
            self.usage[job] = self._simulated(job)
        return self.usage[job]

    def _traced(self, job: Job) -> Job:
        """Return what is traced of a job: of a step that is divided, a few micro-batches tell."""
        if self.wish.per_step is None:
            return job
        return job.model_copy(update={"grad_accum": min(job.grad_accum, MOST_TRACED)})

    def _simulated(self, job: Job) -> Usage:
        made = simulate(self.scenario.config, job, self.scenario.platform)
        rest = made.host_bytes, made.parameters, made.trainable, unlike(made.kinds)
        available = self._available_bytes(job)
        requested = made.tape.peak_requested_bytes(made.tape.built())
        reserved = requested if requested > available else reserved_up_to(available, made.tape)
        fits = reserved <= available
        limits = available * requested // reserved, available
        batch, most = largest_by(made.tape, job.batch, *limits) if fits else (0, 0)
        return Usage(reserved, batch, most, fits, *rest)

    def _available_bytes(self, job: Job) -> int:
        """Return what PyTorch has beside NCCL's buffers at their largest, and the margin."""
        return self.limit - nccl(job)[1][1]

    def _of(self, layout: LayoutChoice, job: Job, usage: Usage) -> Choice:
        nccl_bytes = nccl(job)[1][1]
        moved = traffic(job, self._sizes(usage))
        slower = job.checkpointing != "none" or job.cpu_offload
        return Choice(
            layout=layout.name,
            gpus=layout.gpus,
            trains=layout.trains,
            costs=(Cost.SPEED,) * slower + (Cost.NUMERICS,) * (layout.trains != "full"),
            peak_bytes=usage.peak_bytes + self.gpu.context_bytes,
            left_bytes=self.gpu.available_bytes - usage.peak_bytes - nccl_bytes,
            nccl_bytes=nccl_bytes,
            global_batch=global_batch(job),
            network_bytes=moved.network_bytes,
            sent_per_sequence_bytes=moved.network_bytes // global_batch(job),
            host_bytes=usage.host_bytes,
            copied_bytes=moved.host_bytes,
            recomputes=job.checkpointing != "none",
            fields=fields_of(self.scenario, job),
            command=command(self.scenario, job, layout.gpus, self.wish.per_node),
        )

    def _cost(self, choice: Choice) -> tuple[object, ...]:
        """Order by what is trained, then by the time of a token, then by memory."""
        return GOALS["any"].index(choice.trains), self._seconds(choice), choice.peak_bytes

    def _seconds(self, choice: Choice) -> float:
        moved = Traffic(choice.network_bytes, choice.copied_bytes).per(choice.global_batch)
        again = self._again_flops(choice.gpus) if choice.recomputes else 0
        return seconds_per_sequence(self.gpu.key, moved, again)

    def _again_flops(self, gpus: int) -> float:
        """Return what each GPU computes of a sequence's forward pass that is run again."""
        return (self.scenario.job.block or 1) * 2 * self.parameters / gpus

    def _sizes(self, usage: Usage) -> Sizes:
        """Return what of the model decides what is sent; only cut ones have to have it."""
        config = self.scenario.config
        names = ("num_hidden_layers", "hidden_size", "vocab_size")
        if config.model_type == "titan":
            names = ("n_layers", "dim", "vocab_size")
        return Sizes(usage.parameters, usage.trainable, *(getattr(config, n, 0) for n in names))
