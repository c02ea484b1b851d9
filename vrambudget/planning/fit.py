"""The largest batch, or the longest block, that fits on a card, by replay on that card.

Memory grows almost in a straight line with the batch, so each try is where the line through the
last tries on both sides meets the card; where that does not halve what is left to search, the
middle is tried. The search ends with one size that fits and the next one that does not.

    max_batch("gpt2", block=1024, gpu="12GB")                  the largest batch: 6
    fit(resolve("gpt2", block=1024, gpu="12GB")).curve         what it takes around there

A margin is left free beside the CUDA context, for what is not in the job: another library, a longer
sequence.

Not modelled: reserved bytes may fall where a size rises by one (segments); a larger size beyond the
answer may fit again by such luck and is not looked for.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from vrambudget.config.gpus import Gpu
from vrambudget.config.settings import LARGEST
from vrambudget.errors import VramBudgetError
from vrambudget.estimator import Task, resolve
from vrambudget.planning.sweep_plan import ModelSource, room_bytes
from vrambudget.planning.variants import variant
from vrambudget.replay import fits, replay
from vrambudget.simulate import simulate
from vrambudget.units import parse_bytes

What = Literal["batch", "block"]
_QUARTERS = range(1, 7)  # the curve goes from a quarter of the answer to one and a half


@dataclass(frozen=True, slots=True)
class Point:
    """One size that was tried: its peaks on a card without end; whether it fits on the given."""

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
    margin: int | str = 0,
    **fields: Any,
) -> int:
    """Return the largest batch that fits, 0 if none does; `margin`: bytes, or a text as "512MiB".

    Raises VramBudgetError for a model, a field, a card or a margin that makes no sense.
    """
    return largest_batch(resolve(model, gpu=gpu, **fields), margin_bytes=margin_bytes(margin))[0]


def max_block(
    model: ModelSource,
    *,
    gpu: str | Gpu = "auto",
    margin: int | str = 0,
    **fields: Any,
) -> int:
    """Return the longest block that fits, 0 if none does; for the rest see `max_batch`."""
    task = resolve(model, gpu=gpu, **fields)
    return fit(task, what="block", margin_bytes=margin_bytes(margin)).block


def margin_bytes(margin: int | str) -> int:
    """Return a margin in bytes. Raises VramBudgetError for a negative one or no size."""
    size = parse_bytes(margin) if isinstance(margin, str) else margin
    if size < 0:
        raise VramBudgetError(f"margin is {size}: it is what stays free", hint="for example 512MiB")
    return size


def largest_batch(task: Task, *, margin_bytes: int = 0) -> tuple[int, list[Point]]:
    """Return the largest batch that fits (0: none) and the points tried, in order of batch."""
    search = _Search(task, "batch", margin_bytes)
    answer = search.largest()
    return answer, search.points(search.tried)


def fit(task: Task, *, what: What = "batch", margin_bytes: int = 0) -> Fit:
    """Return the largest batch or the longest block that fits, and the curve around it."""
    search = _Search(task, what, margin_bytes)
    answer = search.largest()
    around = {answer * quarters // 4 for quarters in _QUARTERS} | {answer, answer + 1}
    curve = search.points({n for n in around if 1 <= n < search.end})
    size = {"batch": task.job.batch, "block": task.job.block or 0, what: answer}
    return Fit(size["batch"], size["block"], tuple(curve))


class _Search:
    """Tries sizes of one kind, each once."""

    def __init__(self, task: Task, what: What, margin_bytes: int) -> None:
        if task.gpu is None:
            raise VramBudgetError("no GPU was named", hint="say --gpu, for example --gpu 12GB")
        self.task = task
        self.what = what
        self.room = room_bytes(task.gpu) - margin_bytes
        positions = task.config.learned_positions if what == "block" else None
        self.end = (positions or LARGEST) + 1  # no size from here on is one
        self.tried: dict[int, Point] = {}

    def points(self, sizes: Collection[int]) -> list[Point]:
        """Return these sizes' points in rising order."""
        return [self.point(n) for n in sorted(sizes)]

    def point(self, n: int) -> Point:
        """Return what the task takes at size n."""
        if n not in self.tried:
            there = variant(self.task, **{self.what: n})
            tape = simulate(there.config, there.job, there.device).tape
            peak = replay(tape).peak
            self.tried[n] = Point(
                batch=there.job.batch,
                block=there.job.block or 0,
                peak_allocated_bytes=peak.allocated_bytes,
                peak_reserved_bytes=peak.reserved_bytes,
                fits=fits(tape, peak, self.room),
            )
        return self.tried[n]

    def largest(self) -> int:
        """Return the largest size that fits, 0 if none does."""
        good, bad = 0, self.end
        n = min(getattr(self.task.job, self.what), self.end - 1)
        while bad - good > 1:
            left = bad - good
            good, bad = (n, bad) if self.point(n).fits else (good, n)
            n = self._guess(good, bad)
            if bad < self.end and 2 * (bad - good) > left:
                n = (good + bad) // 2
        return good

    def _guess(self, good: int, bad: int) -> int:
        """Return where the line through the tries next to the border meets the card."""
        known = sorted(self.tried)
        near = [n for n in known if n <= good][-1:] + [n for n in known if n >= bad][:1]
        a, b = near if len(near) > 1 else known[-2:] if good and len(known) > 1 else (0, near[0])
        start, end = (self.tried[n].peak_reserved_bytes if n else 0 for n in (a, b))
        rise = (end - start) / (b - a)
        guess = a + int((self.room - start) / rise) if rise > 0 else 2 * good
        return min(max(guess, good + 1), bad - 1)
