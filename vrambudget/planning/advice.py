"""What to change so that a job fits, each change with the peak that it leads to.

`advise` tries every change of `planning.changes` by replay and keeps those that lower the device's
peak. They are sorted by what they cost (nothing, speed, numerics, data), then by how much they
save. Where a job does not fit and no single change is enough, pairs that are enough follow.

The largest tensors that are alive at the peak are named, so that one sees what the changes act on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from vrambudget.config.gpus import Gpu
from vrambudget.config.job import Job
from vrambudget.errors import VramBudgetError
from vrambudget.estimator import Task, resolve
from vrambudget.planning.changes import CHANGES, Change, Cost, options
from vrambudget.planning.sweep_plan import ModelSource, room_bytes
from vrambudget.planning.tensors import Held, held
from vrambudget.planning.variants import variant
from vrambudget.replay import alive_at, fits, replay
from vrambudget.simulate import simulate

_COSTS = tuple(Cost)
_NAMED = 5  # tensors
_PAIRS = 5
_FOLLOWED = 16  # micro-batches: those after the third repeat it


@dataclass(frozen=True, slots=True)
class Option:
    """A change, or several, with the predicted peak. `options`: for the command line."""

    options: str
    words: tuple[str, ...]
    cost: Cost
    device_peak_bytes: int
    saved_bytes: int
    fits: bool | None  # None where no card was named


@dataclass(frozen=True, slots=True)
class Advice:
    """What would help, the cheapest first, and the largest tensors at the peak."""

    fits: bool | None
    device_peak_bytes: int
    options: tuple[Option, ...]
    largest: tuple[Held, ...]


def advise(model: ModelSource, *, gpu: str | Gpu | None = None, **fields: Any) -> Advice:
    """Return what would help a job; `fields` are those of `Job`.

    Raises VramBudgetError for a model, a field or a card that makes no sense.
    """
    return advise_task(resolve(model, gpu=gpu, **fields))


def advise_task(task: Task) -> Advice:
    """Return what would help a resolved task."""
    trial = _Trial(task)
    singles = trial.helpful((change,) for change in CHANGES)
    pairs: dict[tuple[Change, ...], Option] = {}
    if trial.now.fits is False and not any(option.fits for option in singles.values()):
        helpful = [change for (change,) in singles]
        pairs = trial.helpful(combinations(helpful, 2))
    enough = sorted((pair for pair in pairs.values() if pair.fits), key=_rank)
    return Advice(
        fits=trial.now.fits,
        device_peak_bytes=trial.device_peak_bytes(trial.now),
        options=(*sorted(singles.values(), key=_rank), *enough[:_PAIRS]),
        largest=largest_tensors(task)[:_NAMED],
    )


def largest_tensors(task: Task) -> tuple[Held, ...]:
    """Return what is alive when most is allocated, the largest first."""
    tape = simulate(task.config, task.job, task.device).tape
    return tuple(held(tape, alive_at(tape, replay(tape).peak_event), task.job))


def _rank(option: Option) -> tuple[int, int]:
    return _COSTS.index(option.cost), -option.saved_bytes


@dataclass(frozen=True, slots=True)
class _Result:
    reserved_bytes: int
    fits: bool | None


class _Trial:
    """A task, and what becomes of its variants; each is replayed once."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.results: dict[Job, _Result] = {}
        self.now = self.result(task)

    def result(self, task: Task) -> _Result:
        """Return what a variant comes to."""
        task = variant(task, grad_accum=min(task.job.grad_accum, _FOLLOWED))
        if task.job not in self.results:
            tape = simulate(task.config, task.job, task.device).tape
            peak = replay(tape).peak
            verdict = None if task.gpu is None else fits(tape, peak, room_bytes(task.gpu))
            self.results[task.job] = _Result(peak.reserved_bytes, verdict)
        return self.results[task.job]

    def device_peak_bytes(self, result: _Result) -> int:
        """Return reserved bytes and the card's context."""
        return result.reserved_bytes + (self.task.gpu.context_bytes if self.task.gpu else 0)

    def helpful(self, sets: Iterable[tuple[Change, ...]]) -> dict[tuple[Change, ...], Option]:
        """Return the sets of changes that can be made and lower the peak."""
        found = {}
        for changes in sets:
            try:
                option = self._option(changes)
            except VramBudgetError:  # this model, or this job, cannot be changed so
                continue
            least = max(change.least for change in changes)
            if option is not None and option.saved_bytes * least >= self.now.reserved_bytes:
                found[changes] = option
        return found

    def _will_do(self, changed: Task) -> bool:
        """Whether a searched size is small enough: it fits, or where that is no question, half."""
        if self.now.fits is False:
            # More micro-batches repeat the third: a search need not follow them all.
            times = min(changed.job.grad_accum, 3)
            return bool(self.result(variant(changed, grad_accum=times)).fits)
        job, now = changed.job, self.task.job
        return 2 * job.batch * (job.block or 1) <= now.batch * (now.block or 1)

    def _option(self, changes: tuple[Change, ...]) -> Option | None:
        changed: Task | None = self.task
        for change in changes:
            changed = changed and change.apply(changed, self._will_do)
        if changed is None:
            return None
        result = self.result(changed)
        return Option(
            options=options(self.task.job, changed.job),
            words=tuple(change.words for change in changes),
            cost=max((change.cost for change in changes), key=_COSTS.index),
            device_peak_bytes=self.device_peak_bytes(result),
            saved_bytes=self.now.reserved_bytes - result.reserved_bytes,
            fits=result.fits,
        )
