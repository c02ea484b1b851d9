"""Which size to compile next: each compilation takes a while, so as few as possible are tried.

Two sizes that were compiled to the same events, all but the storages' bytes, are two points of a
line for each storage; at a third size all lines together are a tape, whose replay says whether it
would fit. That is a guess, for a compiler may decide otherwise there: it says which size to try,
and a size that was not compiled is never the answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from vrambudget.tape.events import Tape
from vrambudget.tape.replay import fits, replay

_MOST_GUIDED = 6  # tries; a guess that is wrong so often is no guide


@dataclass(frozen=True, slots=True)
class Guide:
    """Says which size should be the largest that fits; `tapes` are of those compiled so far."""

    limit: int
    tapes: dict[int, Tape] = field(default_factory=dict)

    def __call__(self, good: int, bad: int) -> int | None:
        """Return the size, from one that fits to below one that does not; None: nobody knows."""
        if not 1 < len(self.tapes) <= _MOST_GUIDED:
            return None
        return guessed(self.tapes, good, bad, self.limit)


def guessed(tapes: Mapping[int, Tape], good: int, bad: int, limit: int) -> int | None:
    """Return the largest size from `good` to below `bad` that should fit.

    `tapes` are of the sizes that were tried; None where no two of them have the same events.
    """
    near = sorted(tapes, key=lambda size: abs(size - good))
    pair = next((p for p in pairwise(near) if _are_identical(*(tapes[size] for size in p))), None)
    if pair is None:
        return None
    two = {size: tapes[size] for size in pair}
    stride = 1
    while bad - good > 1:
        size = min(good + stride, (good + bad) // 2) if stride else (good + bad) // 2
        tape = _at(size, two)
        if fits(tape, replay(tape).peak, limit):
            good, stride = size, 2 * stride
        else:
            bad, stride = size, 0
    return good


def _are_identical(a: Tape, b: Tape) -> bool:
    return a.events == b.events and a.operations == b.operations and a.purposes == b.purposes


def _at(size: int, two: Mapping[int, Tape]) -> Tape:
    """Return the tape of a size on the lines through two others."""
    (low, a), (high, b) = sorted(two.items())
    lines = zip(a.sizes, b.sizes, strict=True)
    span, steps = high - low, size - low
    return replace(a, sizes=[max(x + (y - x) * steps // span, 1) for x, y in lines])
