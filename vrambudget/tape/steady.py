"""A tape run through an allocator from mark to mark; what only repeats a cycle is skipped.

Steps repeat one another, and so do micro-batches (`vrambudget.tape.repeats`), but the first few
find other free blocks than the later ones. Sooner or later the allocator begins one in a state in
which it began an earlier one: the same free blocks, and what will be freed at the same addresses.
From there on the same requests get the same blocks, every counter repeats, and no peak is new. So
whole cycles are skipped, and the result is that of a full replay.

A tape that ends with a step like the one before it is prolonged until that happens
(`vrambudget.tape.settling`).
"""

from collections.abc import Callable, Iterator

from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.events import Tape
from vrambudget.tape.marks import Mark
from vrambudget.tape.packing import storage_of
from vrambudget.tape.settling import Settling


def run(
    tape: Tape, allocator: CachingAllocator, matters: Callable[[], bool] = lambda: True
) -> Iterator[tuple[Mark, int]]:
    """Run a tape; yield each mark, once it is reached, with the bytes allocated there.

    The run goes on until memory settles, if that `matters` (asked where the tape ends). Raises
    OutOfDeviceMemoryError.
    """
    settling = Settling(tape, allocator, matters)
    cycles = _Cycles(tape, allocator)
    allocated: list[int] = []  # at each mark
    here = cycle = 0  # position; marks of the cycle that is skipped
    for number, mark in _numbered(tape):
        if mark.position < here:
            allocated.append(allocated[-cycle])
            yield mark, allocated[-1]
            continue
        allocator.run(tape.events, tape.sizes, here, mark.position)
        if mark.gives_back:
            allocator.empty_cache()
        allocated.append(allocator.allocated_bytes)
        yield mark, allocated[-1]
        if settling.goes_on(number):
            cycles.find_parts()
        here, cycle = cycles.skip(mark.position, number)
        if mark.steps is not None:
            from vrambudget.tape.quick_steps import run_steps  # noqa: PLC0415 - few tapes have some

            run_steps(mark.steps, allocator, tape.sizes, mark.position)
            here = mark.steps.end


def _numbered(tape: Tape) -> Iterator[tuple[int, Mark]]:
    """Yield marks with their numbers, also those that are appended meanwhile."""
    number = 0
    while number < len(tape.marks):
        yield number, tape.marks[number]
        number += 1


class _Cycles:
    """The allocator's state before each part that repeats another, or is repeated."""

    def __init__(self, tape: Tape, allocator: CachingAllocator) -> None:
        self.tape, self.allocator = tape, allocator
        self.find_parts()
        self.states: dict[tuple[int, int], tuple[int, object]] = {}  # number of mark, state

    def find_parts(self) -> None:
        """Read off the marks which parts of the tape repeat others, and which are repeated."""
        self.periods = {mark.position: mark.period for mark in self.tape.marks if mark.period}
        self.parts = {at - period: period for at, period in self.periods.items()} | self.periods

    def skip(self, here: int, number: int) -> tuple[int, int]:
        """Skip whole cycles from `here` on, if any; return where they end, and a cycle's marks."""
        period = self.parts.get(here)
        if period is None or (here, period) in self.states:
            return here, 0
        self.states[here, period] = number, self.allocator.state()
        before = here - period
        while (before, period) in self.states and not self._is_identical(before, here, period):
            before -= period
        if self.periods.get(here) != period or (before, period) not in self.states:
            return here, 0
        cycle, to = here - before, here
        while all(self.periods.get(at) == period for at in range(to, to + cycle, period)):
            to += cycle
        first, stop = (self.tape.next_born(at) for at in (here - period, here))
        self.allocator.take_over(first, stop, (stop - first) * ((to - here) // period))
        return to, number - self.states[before, period][0]

    def _is_identical(self, before: int, here: int, period: int) -> bool:
        """Whether the allocator's state was the same before the part that this one repeats."""
        if self.states[before, period][1] != self.states[here, period][1]:
            return False
        then, now = (self.allocator.blocks(self._found(at, period)) for at in (before, here))
        return then == now

    def _found(self, start: int, length: int) -> list[int]:
        """Return the storages of a part's events that are older than the part, oldest first.

        Their addresses decide, too: which blocks become free in the part. On the fast path all of
        them die in it.
        """
        first, events = self.tape.next_born(start), self.tape.events[start : start + length]
        if self.tape.is_fast:
            return sorted(~event for event in events if ~first < event < 0)
        return sorted({i for i in map(storage_of, events) if i < first})
