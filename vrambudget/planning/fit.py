"""The largest batch, or the longest block, that fits on a card, by replay on that card.

Memory grows almost in a straight line with the batch, so each try is where the line through the last
two tries meets the card; the search ends with one size that fits and the next one that does not.

Not modelled: reserved bytes may fall where a size rises by one (segments); a larger size beyond the
answer may fit again by such luck and is not looked for.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vrambudget.config.gpus import Gpu
from vrambudget.errors import VramBudgetError
from vrambudget.estimator import Task
from vrambudget.replay import replay, replay_on
from vrambudget.simulate import simulate

_LARGEST = 2**20
"""Where the search for what fits ends: no card holds a batch of a million sequences."""


@dataclass(frozen=True, slots=True)
class Point:
    """One size that was tried: its peaks on a card without end, and whether it fits on the given."""

    batch: int
    block: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    fits: bool


def try_point(task: Task, *, batch: int, block: int, margin_bytes: int = 0) -> Point:
    """Return what `task` takes at this size."""
    gpu = _card(task)
    job = task.job.model_copy(update={"batch": batch, "block": block})
    job = job.resolve(task.config.for_job(job))
    tape = simulate(task.config, job, task.device).tape
    peak = replay(tape).peak
    room = gpu.capacity_bytes - gpu.context_bytes - margin_bytes
    fits = peak.reserved_bytes <= room or replay_on(tape, room) is None
    return Point(batch, block, peak.allocated_bytes, peak.reserved_bytes, fits)


def largest_batch(task: Task, *, margin_bytes: int = 0) -> tuple[int, list[Point]]:
    """Return the largest batch that fits (0: none) and the points tried, in order of batch."""
    block = task.job.block
    assert block is not None  # noqa: S101 - a task's job is resolved
    return _largest(
        task, task.job.batch, lambda n: try_point(task, batch=n, block=block, margin_bytes=margin_bytes)
    )


def _largest(task: Task, first: int, attempt: Callable[[int], Point]) -> tuple[int, list[Point]]:
    gpu = _card(task)
    room = gpu.capacity_bytes - gpu.context_bytes
    tried: dict[int, Point] = {}

    def look(n: int) -> bool:
        if n not in tried:
            tried[n] = attempt(n)
        return tried[n].fits

    good, bad = 0, _LARGEST
    n = max(first, 1)
    while bad - good > 1:
        if look(n):
            good = n
        else:
            bad = n
        n = _guess(tried, room, good, bad)
    return good, [tried[n] for n in sorted(tried)]


def _guess(tried: dict[int, Point], room: int, good: int, bad: int) -> int:
    """Return where the line through the points next to the border meets the card."""
    known = sorted(tried)
    below = [n for n in known if n <= good][-2:]
    above = [n for n in known if n >= bad][:2]
    pair = [below[-1], above[0]] if below and above else below or above
    if len(pair) == 1:
        n = pair[0]
        guess = n * room // max(tried[n].peak_reserved_bytes, 1)
    else:
        a, b = pair
        rise = (tried[b].peak_reserved_bytes - tried[a].peak_reserved_bytes) / (b - a)
        guess = a + int((room - tried[a].peak_reserved_bytes) / rise) if rise > 0 else good + 1
    return min(max(guess, good + 1), bad - 1)


def _card(task: Task) -> Gpu:
    if task.gpu is None:
        raise VramBudgetError("no GPU was named", hint="say --gpu, for example --gpu 12GB")
    return task.gpu


