"""What to change so that a job fits, each change with the peak that it leads to.

`advise` replays every change of `planning.changes` and keeps those that lower the device's peak.
They are sorted by cost (nothing, speed, numerics, data), then by how much they save. If a job does
not fit and no single change is enough with the same data, pairs of changes that are enough follow;
where no pair is, the recipes of a plan (`planning.recipes`) that make the same step; where none is,
what a plan has besides (`planning.alternatives`): TRL's loop, shorter sequences.

The largest tensors that are alive at the peak are named, to show what the changes act on.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple, Unpack

from vrambudget.config.gpus import Gpu
from vrambudget.config.job import Job
from vrambudget.config.source import ModelSource
from vrambudget.errors import VramBudgetError
from vrambudget.estimator import Traced, trace_job
from vrambudget.planning.advised import Advice, Option, plan_of
from vrambudget.planning.changes import CHANGES, Change, Cost
from vrambudget.planning.choices import changed_options
from vrambudget.planning.forked import forked
from vrambudget.planning.lower_bound import LowerBound
from vrambudget.planning.search import Try, largest_that_fits, model_bytes
from vrambudget.planning.tensors import held
from vrambudget.planning.variants import MOST_TRACED, as_traced, variant
from vrambudget.scenario import Scenario, resolve
from vrambudget.simulate import simulate
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import fits, replay_for

if TYPE_CHECKING:
    from vrambudget.config.job_fields import RunFields
    from vrambudget.planning.recipes import Recipe, Trained

_COSTS = tuple(Cost)
_NAMED = 5  # tensors
_PAIRS = 5
_LESS_THAN: "Mapping[tuple[bool, bool], tuple[Trained, ...]]" = {
    (False, False): ("full", "lora", "qlora"),
    (False, True): ("lora", "qlora"),
    (True, True): ("qlora",),
}
"""What may be trained instead, by whether weights are in 4 bits and whether there are adapters."""
_WORDS: "Mapping[Trained, str]" = {
    "full": "all weights are trained, with less for each",
    "lora": "adapters of 16-bit weights are trained",
    "qlora": "adapters of 4-bit weights are trained",
}


def advise(
    model: ModelSource, *, gpu: str | Gpu | None = None, **fields: "Unpack[RunFields]"
) -> Advice:
    """Return what would help a job; `fields` are those of `Job`.

    Raises VramBudgetError for a model, a field or a GPU that makes no sense.
    """
    return advise_on(trace_job(resolve(model, gpu=gpu, **fields)))


def advise_on(
    traced: Traced, progress: Callable[[], object] = lambda: None, *, forks: bool = False
) -> Advice:
    """Return what would help a scenario that was traced; `progress` is called before each try.

    `forks`: let other processes try, too. For a process that has no other threads.
    Where lengths change, changes are tried on the draw that is shown.
    """
    traced = replace(traced, scenario=as_traced(traced))
    trial = _Trial(traced, progress, forks=forks)
    singles = trial.helpful((change,) for change in CHANGES)
    pairs: dict[tuple[Change, ...], Option] = {}
    if trial.now.fits is False and not _is_enough(singles.values()):
        every = [*combinations((change for (change,) in singles), 2)]
        for cost in _COSTS:
            if len(pairs) < _PAIRS:  # else what costs more is not named
                of_one_cost = (changes for changes in every if _cost(changes) is cost)
                pairs |= trial.helpful(of_one_cost, only_enough=True)
    enough = sorted(pairs.values(), key=_rank)
    if trial.now.fits is False and not _is_enough((*singles.values(), *enough)):
        enough = [*(trial.recipes() or trial.with_less()), *enough]
    alive = traced.tape.alive_at(traced.peak_event)
    return Advice(
        fits=trial.now.fits,
        device_peak_bytes=trial.device_peak_bytes(trial.now),
        options=(*sorted(singles.values(), key=_rank), *enough[:_PAIRS]),
        largest=tuple(held(traced.tape, alive, traced.scenario.job)[:_NAMED]),
        capacity_bytes=gpu.capacity_bytes if (gpu := traced.scenario.gpu) else None,
        spare_bytes=gpu.spare_bytes if gpu else 0,
        plan=plan_of(traced.scenario),
    )


def _is_enough(found: Iterable[Option]) -> bool:
    """Return whether any option makes the job fit with the same data."""
    return any(option.fits and option.cost is not Cost.DATA for option in found)


def _cost(changes: Iterable[Change]) -> Cost:
    return max((change.cost for change in changes), key=_COSTS.index)


def _rank(option: Option) -> tuple[int, int]:
    return _COSTS.index(option.cost), -option.saved_bytes


class _Result(NamedTuple):
    reserved_bytes: int
    model_bytes: int
    fits: bool | None


class _Trial:
    """A scenario and its variants; each is replayed once."""

    def __init__(self, traced: Traced, progress: Callable[[], object], *, forks: bool) -> None:
        self.progress, self.forks = progress, forks
        self.scenario, self.tape = traced.scenario, traced.tape
        self.limit = traced.available_bytes
        budget = traced.budget
        self.now = _Result(
            budget.peak.reserved_bytes,
            model_bytes(budget.breakdown),
            budget.fits if budget.device else None,
        )
        self.lower_bound = LowerBound(traced)
        self.results: dict[Job, _Result] = {self.scenario.job: self.now}
        self.requested: dict[Job, int] = {}  # by jobs without expandable segments: they change none
        self._last: tuple[Job, Tape] | None = None  # the variant that was traced last

    def result(self, scenario: Scenario) -> _Result:
        """Return what a variant comes to."""
        if (scenario := _shortened(scenario)).job not in self.results:
            self._replay(scenario, self._tape(scenario))
        return self.results[scenario.job]

    def device_peak_bytes(self, result: _Result) -> int:
        """Return reserved bytes and the GPU's context, if there is a GPU."""
        gpu = self.scenario.gpu
        return result.reserved_bytes + (gpu.context_bytes if gpu else 0)

    def helpful(
        self, sets: Iterable[tuple[Change, ...]], *, only_enough: bool = False
    ) -> dict[tuple[Change, ...], Option]:
        """Return the sets of changes that can be made and lower the peak (below the GPU's)."""
        found, sets = {}, list(sets)
        if self.forks:
            self.progress()
            last_first = reversed(sets)  # what searches takes longest
            pieces = [partial(self._learned, one, only_enough=only_enough) for one in last_first]
            for results, requested in forked(pieces):
                self.results |= results
                self.requested |= requested
        for changes in sets:
            self.progress()
            try:
                option = self._option(changes, only_enough=only_enough)
            except VramBudgetError:  # this model, or this job, cannot be changed so
                continue
            least = max(change.least for change in changes)
            if option is not None and option.saved_bytes * least >= self.now.reserved_bytes:
                found[changes] = option
        return found

    def _learned(
        self, changes: tuple[Change, ...], *, only_enough: bool
    ) -> tuple[dict[Job, _Result], dict[Job, int]]:
        """Return what is known once these changes are tried, and was not before."""
        before, asked = {*self.results}, {*self.requested}
        with suppress(VramBudgetError):
            self._option(changes, only_enough=only_enough)
        return (
            {job: result for job, result in self.results.items() if job not in before},
            {job: size for job, size in self.requested.items() if job not in asked},
        )

    def recipes(self) -> list[Option]:
        """Return the ways to make the same step that fit, what gives up least first."""
        scenario, job = self.scenario, self.scenario.job
        if job.mode != "train" or job.mesh.ranks > 1:
            return []
        from vrambudget.planning.recipes import recipes  # noqa: PLC0415 - needed last

        found = recipes(
            scenario,
            _LESS_THAN[job.quant is not None, job.lora_rank is not None],
            per_step=job.batch * job.grad_accum,
            progress=self.progress,
        )
        return [self._offer(r, _WORDS[r.trains], r.costs[-1]) for r in found]

    def with_less(self) -> list[Option]:
        """Return what a plan finds on this GPU besides: another loop, shorter sequences."""
        scenario, job = self.scenario, self.scenario.job
        if job.mode != "train" or job.mesh.ranks > 1 or job.compile:
            return []
        from vrambudget.planning import alternatives  # noqa: PLC0415 - needed last
        from vrambudget.planning.plan import Wish  # noqa: PLC0415

        kinds = _LESS_THAN[job.quant is not None, job.lora_rank is not None]
        wish = Wish(goal=kinds[-1], per_step=job.batch * job.grad_accum)

        def find(there: Scenario) -> "Recipe | None":
            return alternatives.most_frugal(there, wish, self.progress)

        offers = list[Option]()
        for what, there, recipe, _ in alternatives.with_less(scenario, wish, find):
            block, words = there.job.block or 1, [_WORDS[recipe.trains], what]
            words += [] if block == job.block else [alternatives.sequences_of(block)]
            cost = recipe.costs[-1] if block == job.block else Cost.DATA
            offers.append(self._offer(recipe, ", ".join(dict.fromkeys(words)), cost))
        return offers

    def _offer(self, recipe: "Recipe", words: str, cost: Cost) -> Option:
        return Option(
            options=changed_options(self.scenario, recipe.job),
            words=(words,),
            cost=cost,
            device_peak_bytes=recipe.peak_bytes,
            saved_bytes=self.device_peak_bytes(self.now) - recipe.peak_bytes,
            fits=True,
        )

    def _search(self, sizes: Sequence[int], at: Callable[[int], Scenario], now: int) -> Scenario:
        """Return the scenario at the largest size that fits; if it fits anyway, at half."""
        if self.now.fits is not False or self.limit is None:
            return at(next(reversed(sizes[: bisect_right(sizes, now // 2)]), sizes[0]))
        if self.lower_bound.bytes(at(sizes[0]).job) > self.limit:
            return at(sizes[0])
        return at(
            largest_that_fits(sizes, lambda n: self._attempt(at(n)), start=now, limit=self.limit)
            or sizes[0]
        )

    def _attempt(self, scenario: Scenario) -> Try:
        """Try a variant; one whose tensors alone are too much is not replayed, nor traced twice."""
        if (scenario := _shortened(scenario)).job not in self.results:
            plain = scenario.job.model_copy(update={"expandable_segments": False})
            requested = max(self.lower_bound.bytes(plain), self.requested.get(plain, 0))
            if self.limit is None or requested <= self.limit:
                tape = self._tape(scenario)
                requested = self.requested[plain] = tape.peak_requested_bytes()
            if self.limit is not None and requested > self.limit:
                return Try(requested, 0, fits=False)
            self._replay(scenario, tape)
        result = self.results[scenario.job]
        return Try(result.reserved_bytes, result.model_bytes, bool(result.fits))

    def _tape(self, scenario: Scenario) -> Tape:
        """Return a variant's tape; the allocator's setting does not change it."""
        expandable = scenario.job.expandable_segments
        if scenario.job == self.scenario.job.model_copy(update={"expandable_segments": expandable}):
            return replace(self.tape, expandable_on_bytes=scenario.platform.expandable_on_bytes)
        if self._last is None or self._last[0] != scenario.job:
            made = simulate(scenario.config, scenario.job, scenario.platform).tape
            self._last = scenario.job, made
        return self._last[1]

    def _replay(self, scenario: Scenario, tape: Tape) -> None:
        replayed = replay_for(tape, self.limit)
        plain = scenario.job.model_copy(update={"expandable_segments": False})
        self.requested[plain] = replayed.peak.requested_bytes
        verdict = None if self.limit is None else fits(tape, replayed.peak, self.limit)
        self.results[scenario.job] = _Result(
            replayed.peak.reserved_bytes, model_bytes(replayed.breakdown), verdict
        )

    def _option(self, changes: tuple[Change, ...], *, only_enough: bool) -> Option | None:
        changed: Scenario | None = self.scenario
        for change in changes:
            changed = changed and change.apply(changed, self._search)
        if changed is None or (only_enough and not self._attempt(changed).fits):
            return None
        result = self.result(changed)
        return Option(
            options=changed_options(self.scenario, changed.job),
            words=tuple(change.words for change in changes),
            cost=_cost(changes),
            device_peak_bytes=self.device_peak_bytes(result),
            saved_bytes=self.now.reserved_bytes - result.reserved_bytes,
            fits=result.fits,
        )


def _shortened(scenario: Scenario) -> Scenario:
    """Return the scenario without the micro-batches that only repeat."""
    repeats = scenario.job.grad_accum > MOST_TRACED
    return variant(scenario, grad_accum=MOST_TRACED) if repeats else scenario
