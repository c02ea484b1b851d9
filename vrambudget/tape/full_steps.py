"""In which decode step a GPU is full, without a replay of the steps.

On a full GPU PyTorch returns each segment that is wholly free to the driver. What stays reserved is
bounded, however the steps fragment it:

    at most     segments in which something lies for good, and for each storage of the steps one of
                the largest size so far, or an old one that is larger
    at least    segments in which something lies for good, and for each storage of more than half
                the largest segment one of its own, as the driver rounds, but for what fits in holes

Before the first step whose upper bound exceeds the GPU no request fails. In a step whose lower
bound exceeds it one does, if none did before.
"""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.allocators import allocator_for
from vrambudget.tape.events import Tape
from vrambudget.tape.segment_sizes import LARGE_SEGMENT, SMALL, UNIT_BITS, segment_size, units
from vrambudget.tape.steady import run
from vrambudget.tape.steps import CARRIED, Pattern, Stretch

_SMALL_BYTES, _SMALL_SEGMENT = SMALL << UNIT_BITS, segment_size(1) << UNIT_BITS
_MULTIPLE = 2 << 20  # of which large segments are


def full_steps(tape: Tape, capacity_bytes: int) -> range:
    """Return the steps of which one is the first that fills a GPU: no step where none does.

    Steps up to `sys.maxsize` may also all have room.
    """
    marks = [mark for mark in tape.marks if mark.steps is not None]
    rises = tape.driver_addresses == "rising" and tape.expandable_on_bytes is None
    if len(marks) != 1 or marks[0].steps is None or not tape.is_fast or not rises:
        return range(sys.maxsize)
    allocator, here, steps = allocator_for(tape), marks[0].position, marks[0].steps
    next(mark for mark, _ in run(tape, allocator) if mark is marks[0])  # no step has run then
    parts = [*steps.stretches, _rest(tape, here, steps.stretches[-1])]
    if any(map(_is_odd, parts)) or allocator.peak_reserved_bytes > capacity_bytes:
        return range(sys.maxsize)
    old = _segments(allocator, {*tape.alive_at(here - 1)} - {*steps.before})
    arriving, large = [tape.sizes[i] for i in steps.before], LARGE_SEGMENT << UNIT_BITS
    first = sys.maxsize
    for part in parts:
        bounds = _Bounds(part, old, [] if part is parts[-1] else arriving, large)
        if first == sys.maxsize:
            first = bounds.first(bounds.at_most, capacity_bytes)
        if first < sys.maxsize:
            last = bounds.first(bounds.at_least, capacity_bytes)
            if last < sys.maxsize:
                return range(first, last + 1)
        end = part.first + part.count
        arriving, large = bounds.carried(end), bounds.large(end - 1)
    return range(first, sys.maxsize)


def _rest(tape: Tape, here: int, last: Stretch) -> Stretch:
    """Return what comes on the tape behind its steps as one more: all they carry is anew in it."""
    first = tape.next_born(here)
    events = (e - first if e >= 0 else e + first for e in tape.events[here:] if max(e, ~e) >= first)
    sizes = tuple(tape.sizes[first:])
    finals = tuple(range(len(sizes)))
    pattern = Pattern(tuple(events), finals, ())
    return Stretch(last.first + last.count, 1, (pattern,), (sizes,), ((0,) * len(sizes),))


def _is_odd(stretch: Stretch) -> bool:
    """Whether a size falls, or something stays that is not carried on."""
    return any(by < 0 for growth in stretch.growth for by in growth) or any(
        {e for e in pattern.events if e >= 0} - {~e for e in pattern.events} - {*pattern.finals}
        for pattern in stretch.patterns
    )


def _segments(allocator: CachingAllocator, stay: Iterable[int]) -> list[tuple[int, int]]:
    """Return each segment's bytes, and how many of them are not those of storages that stay."""
    segments = sorted(allocator.segments().items())
    begins, left = [address for address, _ in segments], [size for _, size in segments]
    for storage in stay:
        at = bisect_right(begins, allocator.address_of(storage)) - 1
        left[at] -= allocator.block_bytes(storage)
    return [(size, free) for (_, size), free in zip(segments, left, strict=True)]


class _Bounds(NamedTuple):
    """What is reserved in the steps of a stretch once the GPU is full. Bytes."""

    stretch: Stretch
    old: list[tuple[int, int]]  # segments, as `_segments` returns them
    arriving: list[int]  # sizes of what is carried into the first step
    before: int  # the largest segment of earlier stretches

    def first(self, bytes_at: Callable[[int], int], capacity_bytes: int) -> int:
        """Return the first step of which a bound is too much."""
        steps = range(self.stretch.first, self.stretch.first + self.stretch.count)
        if bytes_at(steps[-1]) <= capacity_bytes:
            return sys.maxsize
        return steps[bisect_left(steps, capacity_bytes + 1, key=bytes_at)]

    def sizes(self, step: int) -> tuple[Pattern, list[int]]:
        """Return what a step does, and its sizes."""
        turn, which = divmod(step - self.stretch.first, len(self.stretch.patterns))
        both = zip(self.stretch.sizes[which], self.stretch.growth[which], strict=True)
        return self.stretch.patterns[which], [size + by * turn for size, by in both]

    def carried(self, step: int) -> list[int]:
        """Return the sizes of what is carried into a step, -1 where an older one carried it on."""
        if step <= self.stretch.first:
            return self.arriving
        pattern, sizes = self.sizes(step - 1)
        return [sizes[final] if final < CARRIED else -1 for final in pattern.finals]

    def large(self, step: int) -> int:
        """Return the largest segment that a request so far can have made."""
        turn = (step - self.stretch.first) // len(self.stretch.patterns)
        both = zip(chain(*self.stretch.sizes), chain(*self.stretch.growth), strict=True)
        largest = max(size + by * turn for size, by in both)
        return max(self.before, segment_size(units(largest)) << UNIT_BITS)

    def at_most(self, step: int) -> int:
        """Return what is reserved at most up to this step."""
        large = self.large(step)

        def costs(sizes: Iterable[int]) -> list[int]:
            return [_SMALL_SEGMENT if 0 <= size <= _SMALL_BYTES else large for size in sizes]

        most = 0
        first = max(self.stretch.first, step + 1 - len(self.stretch.patterns))
        for n in range(first, step + 1):  # the last of each pattern
            pattern, sizes = self.sizes(n)
            carried = [*map(max, costs(self.carried(n)), costs(self.arriving))]
            most = max(most, _peak(pattern, costs(sizes), carried))
        return most + sum(max(0, size - large) if size == free else size for size, free in self.old)

    def at_least(self, step: int) -> int:
        """Return what is reserved at least in this step."""
        least = self.large(step) // 2 + 1
        pattern, sizes = self.sizes(step)
        costs, carried = (
            [-(-size // _MULTIPLE) * _MULTIPLE if size >= least else 0 for size in of]
            for of in (sizes, self.carried(step))
        )
        old = sum(
            size - free - free // least * _MULTIPLE if free >= least else size * (free < size)
            for size, free in self.old
        )
        return old + _peak(pattern, costs, carried)


def _peak(pattern: Pattern, own: Sequence[int], carried: Sequence[int]) -> int:
    """Return the most that storages which are alive at once cost together."""
    level = most = sum(carried)
    for event in pattern.events:
        if event >= 0:
            level += own[event]
            most = max(most, level)
        else:
            level -= own[~event] if ~event < CARRIED else carried[~event - CARRIED]
    return most
