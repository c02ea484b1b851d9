"""A tape run through an allocator from mark to mark, without what would only go round in circles.

Micro-batches repeat one another and steps do (`Tape.repeat`), but the first few find free blocks
where others left them. Sooner or later the allocator stands before one as it stood before an
earlier one: the same free blocks, and what will die lies in the same places. From there on the same
requests get the same blocks, every counter goes the same way once more, and no peak is new. So
whole turns of that circle are passed over. The result is that of a full replay.
"""

from collections.abc import Iterator, Sequence

from vrambudget.allocator import CachingAllocator
from vrambudget.engine.tape import Mark, Tape


def run(tape: Tape, allocator: CachingAllocator) -> Iterator[tuple[Mark, int]]:
    """Run a tape; yield each mark, once it is reached, with the bytes allocated there.

    Raises OutOfDeviceMemoryError.
    """
    events = tape.events
    periods = {mark.position: mark.period for mark in tape.marks if mark.period}
    parts = {at - period: period for at, period in periods.items()} | periods
    stood: dict[tuple[int, int], tuple[int, object]] = {}  # before a part: mark, allocator's state
    allocated: list[int] = []  # at each mark
    here = turn = 0  # position; marks in a turn that is passed over
    for number, mark in enumerate(tape.marks):
        if mark.position < here:
            allocated.append(allocated[-turn])
            yield mark, allocated[-1]
            continue
        allocator.run(events, tape.sizes, here, mark.position)
        here = mark.position
        if mark.resets_allocator:
            allocator.empty_cache()
        allocated.append(allocator.allocated_bytes)
        yield mark, allocated[-1]

        period = parts.get(here)
        if period is None or (here, period) in stood:
            continue
        state = allocator.state(_found(events, here, period))
        stood[here, period] = number, state
        before = here - period
        while (before, period) in stood and stood[before, period][1] != state:
            before -= period
        if (before, period) in stood and periods.get(here) == period:
            turn = number - stood[before, period][0]
            length = here - before
            to = here
            while all(periods.get(at) == period for at in range(to, to + length, period)):
                to += length
            first, stop = _next_born(events, here - period), _next_born(events, here)
            allocator.take_over(first, stop, (stop - first) * ((to - here) // period))
            here = to


def _found(events: Sequence[int], start: int, length: int) -> list[int]:
    """Return the storages that die in a part and were there before it, oldest first."""
    first = _next_born(events, start)
    return sorted(~event for event in events[start : start + length] if ~first < event < 0)


def _next_born(events: Sequence[int], position: int) -> int:
    while events[position] < 0:
        position += 1
    return events[position]
