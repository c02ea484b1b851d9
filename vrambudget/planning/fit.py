"""The largest batch, or the longest block, that fits on a GPU, by replay on that GPU.

    max_batch("gpt2", block=1024, gpu="12GB")                  the largest batch: 5
    fit(resolve("gpt2", block=1024, gpu="12GB")).curve         what nearby sizes take

A margin is left free besides the CUDA context: by default as much as the context may take beyond
what is assumed. It does not cover what else uses the GPU, such as a desktop.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Unpack

from vrambudget.config.gpus import Gpu
from vrambudget.config.settings import LARGEST, show
from vrambudget.config.source import ModelSource
from vrambudget.errors import VramBudgetError
from vrambudget.planning.search import Try, largest_by, largest_that_fits, model_bytes
from vrambudget.planning.variants import variant
from vrambudget.scenario import Scenario, resolve
from vrambudget.simulate import simulate
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.replay import fits, full_on, replay_for
from vrambudget.units import parse_bytes

if TYPE_CHECKING:
    from vrambudget.config.job_fields import RunFields

What = Literal["batch", "block"]
_MANY = 1024  # new tokens
_QUARTERS = range(1, 7)  # the curve goes from a quarter of the answer to one and a half


@dataclass(frozen=True, slots=True)
class Point:
    """One size that was tried: its peaks on an unlimited GPU; whether it fits on the given one."""

    batch: int
    block: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest size that fits (0: none does) and sizes around it, in rising order."""

    batch: int
    block: int
    curve: tuple[Point, ...]


def max_batch(
    model: ModelSource,
    *,
    gpu: str | Gpu = "auto",
    margin: int | str | None = None,
    **fields: "Unpack[RunFields]",
) -> int:
    """Return the largest batch that fits, 0 if none does.

    `margin` of the GPU stays free: bytes, or a text as "512MiB"; by default as much as the CUDA
    context may take more than is assumed.
    Raises VramBudgetError for a model, a field, a GPU or a margin that makes no sense.
    """
    scenario = resolve(model, gpu=gpu, **fields)
    return largest_batch(scenario, margin_bytes=margin_bytes(margin, scenario.gpu))


def max_block(
    model: ModelSource,
    *,
    gpu: str | Gpu = "auto",
    margin: int | str | None = None,
    **fields: "Unpack[RunFields]",
) -> int:
    """Return the longest block that fits, 0 if none does; for the rest see `max_batch`."""
    scenario = resolve(model, gpu=gpu, **fields)
    return fit(scenario, what="block", margin_bytes=margin_bytes(margin, scenario.gpu)).block


def margin_bytes(margin: int | str | None, gpu: Gpu | None = None) -> int:
    """Return a margin in bytes; None: by how much the GPU's context may be larger than assumed.

    Raises VramBudgetError if it is negative or not a size.
    """
    if margin is None:
        return 0 if gpu is None else gpu.spare_bytes
    size = parse_bytes(margin) if isinstance(margin, str) else margin
    if not isinstance(size, int):
        raise VramBudgetError(
            f"margin is {show(margin)}; it should be bytes, or a text", hint="for example 512MiB"
        )
    if size < 0:
        raise VramBudgetError(
            f"margin is {size}; it should be the memory to leave free", hint="for example 512MiB"
        )
    return size


def largest_batch(scenario: Scenario, *, margin_bytes: int = 0) -> int:
    """Return the largest batch that fits (0: none)."""
    return Search(scenario, "batch", margin_bytes).largest()


def fit(scenario: Scenario, *, what: What = "batch", margin_bytes: int = 0) -> Fit:
    """Return the largest batch or the longest block that fits, and a curve of sizes near it.

    The curve of a compiled job has the sizes that the search tried, and no others.
    """
    search = Search(scenario, what, margin_bytes)
    answer = search.largest()
    if scenario.job.compile:  # each size is compiled, which takes a while
        sizes = set(search.points)
    else:
        sizes = {answer * quarters // 4 for quarters in _QUARTERS} | {answer, answer + 1}
    curve = [search.point(n) for n in sorted(sizes) if 1 <= n < search.end]
    size = {"batch": scenario.job.batch, "block": scenario.job.block or 0, what: answer}
    return Fit(size["batch"], size["block"], tuple(curve))


class Search:
    """Tries sizes of one kind, each once."""

    def __init__(self, scenario: Scenario, what: str, margin_bytes: int) -> None:
        if scenario.gpu is None:
            raise VramBudgetError("no GPU was named", hint="add --gpu, for example --gpu 12GB")
        self.scenario = scenario
        self.what = what
        self.limit = scenario.gpu.available_bytes - margin_bytes
        positions = scenario.config.learned_positions if what == "block" else None
        # No size from here on is one; and on 32 bits, as in browsers, no range is longer.
        self.end = min(positions or LARGEST, sys.maxsize - 1) + 1
        self.points: dict[int, Point] = {}

    def point(self, n: int) -> Point:
        """Return what the scenario takes at size n."""
        if n not in self.points:
            self._replayed(n, *self._traced(n))
        return self.points[n]

    def attempt(self, n: int) -> Try:
        """Try size n; a long answer on its GPU alone, where bounds (`tape.full_steps`) say most.

        A replay of each of its steps on a GPU without limit takes seconds.
        """
        there, tape = self._traced(n)
        if there.job.mode != "generate" or there.job.new <= _MANY:
            return self._replayed(n, there, tape)
        left = tape.alive_at(len(tape.events) - 1)
        weights = sum(tape.sizes[i] for i in left if tape.purposes[i] is Purpose.WEIGHTS)
        # What the tape says of steps that it sums up is a little more than they take.
        return Try(tape.peak_requested_bytes(), weights, full_on(tape, self.limit) is None)

    def _traced(self, n: int) -> tuple[Scenario, Tape]:
        there = variant(self.scenario, **{self.what: n})
        return there, simulate(there.config, there.job, there.platform).tape

    def _replayed(self, n: int, there: Scenario, tape: Tape) -> Try:
        replayed = replay_for(tape, self.limit)
        peak, fit = replayed.peak, fits(tape, replayed.peak, self.limit)
        self.points[n] = Point(
            batch=there.job.batch,
            block=there.job.block or 0,
            peak_allocated_bytes=peak.allocated_bytes,
            peak_reserved_bytes=peak.reserved_bytes,
            fits=fit,
        )
        limit = self.limit * peak.requested_bytes // peak.reserved_bytes
        guess = largest_by(tape, n, limit)[0] if fit else None
        return Try(peak.reserved_bytes, model_bytes(replayed.breakdown), fit, guess)

    def largest(self) -> int:
        """Return the largest size that fits, 0 if none does."""
        start = min(getattr(self.scenario.job, self.what), self.end - 1)
        sizes = range(1, self.end)
        return largest_that_fits(sizes, self.attempt, start=start, limit=self.limit) or 0
