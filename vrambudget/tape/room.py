"""Room that steps which are not on a tape have for certain, whatever holes they leave.

A GPU that is full gives back each segment that is wholly free. So of the segments that were made
since the first step those stay in which something lies that was born since: at most one for each
such storage, and none larger than the largest request since then had made.
"""

from collections.abc import Iterator, Sequence

from vrambudget.tape.allocators import allocator_for
from vrambudget.tape.events import Tape
from vrambudget.tape.segment_sizes import LARGE_SEGMENT, SMALL, UNIT_BITS, segment_size
from vrambudget.tape.steady import run
from vrambudget.tape.steps import CARRIED


def has_room(tape: Tape, capacity_bytes: int) -> bool:
    """Whether a tape with steps never fills a GPU; False also where only a replay can say it."""
    begin = next((mark.position for mark in tape.marks if mark.steps is not None), None)
    rises = tape.driver_addresses == "rising" and tape.expandable_on_bytes is None
    if begin is None or not tape.is_plain or not rises:
        return False
    allocator, first = allocator_for(tape), tape.next_born(begin)
    next(mark for mark, _ in run(tape, allocator) if mark.steps is not None)  # none has run then
    parts = [*_steps(tape), (tape.events[begin:], tape.sizes, ())]
    largest = max(sizes[i] for events, sizes, _ in parts for i in events if i >= 0)
    large = max(segment_size((largest + 511) >> UNIT_BITS), LARGE_SEGMENT)
    most = 0
    for events, sizes, carried in parts:
        segments = [large if nbytes > SMALL << UNIT_BITS else segment_size(1) for nbytes in sizes]
        level = sum(segments[i] if i < CARRIED else large for i in carried)
        for event in events:
            if event >= 0:
                level += segments[event]
                most = max(most, level)
            elif ~event < CARRIED and (carried or ~event >= first):
                level -= segments[~event]
    return allocator.peak_reserved_bytes + (most << UNIT_BITS) <= capacity_bytes


def _steps(tape: Tape) -> Iterator[tuple[Sequence[int], Sequence[int], Sequence[int]]]:
    """Yield each kind of step: events, sizes at their most, what the step before left."""
    for stretch in (s for mark in tape.marks if mark.steps for s in mark.steps.stretches):
        turns = stretch.count // len(stretch.patterns)
        for pattern, sizes, by in zip(stretch.patterns, stretch.sizes, stretch.growth, strict=True):
            grown = [size + max(0, more * turns) for size, more in zip(sizes, by, strict=True)]
            yield pattern.events, grown, pattern.finals
