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
that looks at events alone sees it like that; `vrambudget.tape.quick_steps` is for those who want
each step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

CARRIED = 1 << 40


class Pattern(NamedTuple):
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


class Steps(NamedTuple):
    """Steps between two events of a tape; `end`: where their summary ends."""

    end: int
    stretches: tuple[Stretch, ...]
    before: tuple[int, ...]  # storages that are carried into the first step
    after: tuple[int, ...]  # and out of the last; one that keeps its size is the same


class RepeatedStep(NamedTuple):
    """One of the steps; those a period apart differ in the sizes at `growing` alone."""

    number: int
    pattern: Pattern
    sizes: list[int]
    growing: list[int]
    is_inner: (
        bool  # steps a period before and after it do the same, with no size above the latter's
    )


def phase_of(step: int) -> str:
    """Return the name of a step's phase."""
    return f"decode {step}"


def each(steps: Steps) -> Iterator[RepeatedStep]:
    """Yield each step; the sizes are the same list, with other numbers, a period later."""
    for stretch in steps.stretches:
        period = len(stretch.patterns)
        sizes = [list(start) for start in stretch.sizes]
        growing = [[i for i, by in enumerate(growth) if by] for growth in stretch.growth]
        steady = period + 1 + max(pattern.longest_carry for pattern in stretch.patterns)
        grows = all(by >= 0 for growth in stretch.growth for by in growth)
        for number in range(stretch.count):
            which = number % period
            now = sizes[which]
            if number >= period:
                growth = stretch.growth[which]
                for i in growing[which]:
                    now[i] += growth[i]
            is_inner = grows and steady <= number < stretch.count - period
            pattern = stretch.patterns[which]
            yield RepeatedStep(stretch.first + number, pattern, now, growing[which], is_inner)
