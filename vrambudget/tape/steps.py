"""Steps of a loop that are not on the tape one by one: each repeats the last with new sizes.

A decoding step does what the one before it did, with tensors of one token more. So a tape has the
first and the last of them, and between them `Steps`: what one step does (`Pattern`), and how its
sizes change from step to step. A replay runs every one of these steps through the allocator.

    own storages     numbered from 0 in each step
    carried          storages that the loop holds from one step to the next, in an order of its own
    events           i: the step's storage i is born; ~i: it dies; ~(CARRIED + c): what is carried
                     as number c dies, which the step before made, or an earlier one
    finals           for each c what the step carries on: i, or CARRIED + c if it is as before

On the tape a stretch of steps is a summary: what grew is there anew, and the old is gone. A reader
that looks at events alone sees it like that; `run_steps` is for those who want each step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.full_card import OutOfDeviceMemoryError

CARRIED = 1 << 40


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a step does, but for its sizes."""

    events: tuple[int, ...]
    finals: tuple[int, ...]
    operations: tuple[str, ...]  # of its storages

    @property
    def longest_carry(self) -> int:
        """For how many further steps something is carried on under other numbers."""
        longest = 0
        for number in range(len(self.finals)):
            length, at = 0, number
            while self.finals[at] >= CARRIED and self.finals[at] != CARRIED + at:
                length, at = length + 1, self.finals[at] - CARRIED
            longest = max(longest, length)
        return longest


@dataclass(frozen=True, slots=True)
class Stretch:
    """`count` steps from `first` on; those a `period` apart differ in sizes alone, by `growth`."""

    first: int
    count: int
    patterns: tuple[Pattern, ...]  # of the first `period` steps
    sizes: tuple[tuple[int, ...], ...]
    growth: tuple[tuple[int, ...], ...]  # from a step to the one a period later


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps between two events of a tape; `end`: where their summary ends."""

    end: int
    stretches: tuple[Stretch, ...]
    before: tuple[int, ...]  # storages that are carried into the first step
    after: tuple[int, ...]  # and out of the last; one that keeps its size is the same


def run_steps(
    steps: Steps, allocator: CachingAllocator, sizes: Sequence[int], position: int
) -> None:
    """Run all steps, as if at an event of the tape. Raises OutOfDeviceMemoryError."""
    most = max(len(p.operations) for s in steps.stretches for p in s.patterns)
    base = len(sizes)
    banks = 2 + max(p.longest_carry for s in steps.stretches for p in s.patterns)
    extended = [*sizes, *[0] * (banks * most)]  # storages of as many steps as are alive at once
    allocator.blocks_for(extended)
    carried, bank = list(steps.before), 0
    for number, pattern, now in _each(steps):
        first = base + bank * most
        extended[first : first + len(now)] = now
        before = allocator.peak_allocated_bytes
        events = [
            event + first
            if event >= 0
            else event - first
            if event > ~CARRIED
            else ~carried[~event - CARRIED]
            for event in pattern.events
        ]
        try:
            allocator.serve(events, extended, position)
        except OutOfDeviceMemoryError as full:
            refused = pattern.events[full.event - position]
            full.event, full.phase = position, phase_of(number)
            full.operation = pattern.operations[refused]
            raise
        if allocator.peak_allocated_bytes > before:
            allocator.peak_event, allocator.peak_step = position, number
        carried = [
            first + final if final < CARRIED else carried[final - CARRIED]
            for final in pattern.finals
        ]
        bank = (bank + 1) % banks
    for last, storage in zip(carried, steps.after, strict=True):
        allocator.take_over(last, last + 1, storage - last)


def phase_of(step: int) -> str:
    """Return the name of a step's phase."""
    return f"decode {step}"


def _each(steps: Steps) -> Iterator[tuple[int, Pattern, list[int]]]:
    """Yield each step's number, pattern and sizes."""
    for stretch in steps.stretches:
        period = len(stretch.patterns)
        sizes = [list(start) for start in stretch.sizes]
        growing = [[i for i, by in enumerate(growth) if by] for growth in stretch.growth]
        for number in range(stretch.count):
            which = number % period
            now = sizes[which]
            if number >= period:
                growth = stretch.growth[which]
                for i in growing[which]:
                    now[i] += growth[i]
            yield stretch.first + number, stretch.patterns[which], now
