"""The largest size that fits, in few tries.

Memory grows almost in a straight line with a size, so each try is where the line through the
nearest tries meets the card. Where one of them did not halve what is left, the middle is tried;
where nothing has failed yet though the line is past the card (PyTorch's allocator gives its cache
back when the card is full), the strides double. The search ends with one size that fits and the
next one that does not.

Not modelled: reserved bytes may fall where a size rises by one (segments); a larger size beyond the
answer may fit again by such luck and is not looked for.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vrambudget.tape.events import Purpose

_OF_THE_MODEL = (
    Purpose.WEIGHTS,
    Purpose.AUTOCAST_COPIES,
    Purpose.GRADIENTS,
    Purpose.OPTIMIZER_STATES,
    Purpose.WORKSPACES,
)

_PATIENCE = 1  # tries by the line that need not halve what is left


@dataclass(frozen=True, slots=True)
class Try:
    """What one size takes, how much of it no size changes (about), and whether it fits."""

    peak_bytes: int
    model_bytes: int
    fits: bool


def model_bytes(breakdown: Mapping[str, int]) -> int:
    """Return the part of a peak that no batch and no block changes."""
    return sum(breakdown[part] for part in _OF_THE_MODEL)


def largest_that_fits(
    sizes: Sequence[int],
    attempt: Callable[[int], Try],
    *,
    start: int,
    room: int,
) -> int | None:
    """Return the largest of `sizes` (rising) that fits into `room` bytes, None where none does.

    The first try is `start`, which need not be among them.
    """
    tried: dict[int, Try] = {}
    good, bad = -1, len(sizes)  # indices of the largest that fits and the smallest that does not
    left = [bad - good]  # after each try
    size, stride = start, 1
    while True:
        tried[size] = attempt(size)
        if tried[size].fits:
            good = max(good, bisect_right(sizes, size) - 1)
        else:
            bad = min(bad, bisect_left(sizes, size))
        if bad - good <= 1:
            return sizes[good] if good >= 0 else None
        left.append(bad - good)
        index = bisect_right(sizes, _meets(tried, tried[start].model_bytes, room)) - 1
        fails = any(not this.fits for this in tried.values())
        if not fails and tried[size].peak_bytes > room:
            index = max(index, good + stride)
            stride *= 2
        if fails and len(left) > _PATIENCE + 1 and 2 * left[-1] > left[-1 - _PATIENCE]:
            index = (good + bad) // 2
        size = sizes[min(max(index, good + 1), bad - 1)]


def _meets(tried: Mapping[int, Try], at_zero: int, room: int) -> int:
    """Return where the line through the tries next to the border meets the card."""
    fitting = sorted(size for size, this in tried.items() if this.fits)
    failing = sorted(size for size, this in tried.items() if not this.fits)
    a, b = [*[0, *fitting][-1 if failing else -2 :], *failing[:1]]
    start, end = (tried[n].peak_bytes if n else at_zero for n in (a, b))
    rise = (end - start) / (b - a)
    return a + int((room - start) / rise) if rise > 0 else 2 * b
