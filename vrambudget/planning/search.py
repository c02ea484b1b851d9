"""The largest size that fits, in few tries.

Memory grows almost linearly with a size, so each try is where the line through the nearest tries
meets the GPU's capacity. If such a try did not halve a long interval, its middle is tried, and from
then on where one more than the line said fits, too; if nothing has failed yet although the line is
past the capacity (PyTorch's allocator returns its cache when the GPU is full), the steps double.
The search ends with one size that fits and a next one that does not.

Not modelled: reserved bytes may fall when a size rises by one (segments), so a larger size may
happen to fit again; it is not searched for.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from vrambudget.tape.events import Purpose, Tape

_OF_THE_MODEL = (
    Purpose.WEIGHTS,
    Purpose.AUTOCAST_COPIES,
    Purpose.GRADIENTS,
    Purpose.OPTIMIZER_STATES,
    Purpose.WORKSPACES,
)

_OF_NO_BATCH = {*_OF_THE_MODEL, Purpose.GATHERED, Purpose.COMMUNICATION}

_PATIENCE = 1  # tries by the line that need not halve what is left
_FEW = 16  # sizes that are left to the line alone
_GUESSES = 4  # tries; what grows otherwise is found without them


class Try(NamedTuple):
    """What one size takes, about how much of it is the same for all sizes, and whether it fits."""

    peak_bytes: int
    model_bytes: int
    fits: bool
    guess: int | None = None  # the largest that should fit, by what grows of one that fits


def model_bytes(breakdown: Mapping[str, int]) -> int:
    """Return the part of a peak that no batch and no block changes."""
    return sum(breakdown[part] for part in _OF_THE_MODEL)


def largest_by(tape: Tape, size: int, *limits: int) -> list[int]:
    """Return the largest size that should ask for no more than each limit, by the tape of one.

    What a pass has alive that is not of the model grows with the size.
    """
    begin, end = tape.last_passes()
    grows = [0 if p in _OF_NO_BATCH else n for p, n in zip(tape.purposes, tape.sizes, strict=True)]
    growing = replace(tape, sizes=grows).alive_bytes(begin, end)
    both = zip(tape.alive_bytes(begin, end), growing, strict=True)
    rest = {(n - alive, n) for alive, n in both if n}
    return [min((size * (limit + r) // n for r, n in rest), default=size) for limit in limits]


def largest_that_fits(
    sizes: Sequence[int],
    attempt: Callable[[int], Try],
    *,
    start: int,
    limit: int,
) -> int | None:
    """Return the largest of `sizes` (rising) that fits into `limit` bytes, None if none does.

    The first try is `start`, which need not be among them. The guess of the largest that fits is
    tried next, or the one after it.
    """
    tried: dict[int, Try] = {}
    good, bad = -1, len(sizes)  # indices of the largest that fits and the smallest that does not
    left = [bad - good]  # after each try
    size, stride, misleads = start, 1, False  # it does where one more than it says fits, too
    while True:
        tried[size] = attempt(size)
        misleads |= tried[size].fits and size == sizes[good + 1] and good >= 0
        if tried[size].fits:
            good = max(good, bisect_right(sizes, size) - 1)
        else:
            bad = min(bad, bisect_left(sizes, size))
        if bad - good <= 1:
            return sizes[good] if good >= 0 else None
        left.append(bad - good)
        index = bisect_right(sizes, _meets(tried, tried[start].model_bytes, limit)) - 1
        fails = any(not this.fits for this in tried.values())
        if not fails and tried[size].peak_bytes > limit:
            index = max(index, good + stride)
            stride *= 2
        many = left[-1] > _FEW and len(left) > _PATIENCE + 1
        if fails and (misleads or (many and 2 * left[-1] > left[-1 - _PATIENCE])):
            index = (good + bad) // 2
        best = tried.get(sizes[good]) if good >= 0 and len(tried) < _GUESSES else None
        if best is not None and best.guess is not None and best.guess <= sizes[bad - 1]:
            index = bisect_right(sizes, best.guess) - 1
        size = sizes[min(max(index, good + 1), bad - 1)]


def _meets(tried: Mapping[int, Try], at_zero: int, limit: int) -> int:
    """Return where the line through the nearest tries meets the GPU's capacity."""
    fitting = sorted(size for size, this in tried.items() if this.fits)
    failing = sorted(size for size, this in tried.items() if not this.fits)
    a, b = [*[0, *fitting][-1 if failing else -2 :], *failing[:1]]
    start, end = (tried[n].peak_bytes if n else at_zero for n in (a, b))
    rise = (end - start) / (b - a)
    return a + int((limit - start) / rise) if rise > 0 else 2 * b
