"""A decode step as parts: its small requests, cut at large ones, about one part a layer.

A plan says which events of a step are large, which small ones make a part, and what a part leaves
to later parts. `vrambudget.tape.quick_steps` runs steps by it and caches each part's outcome. Parts
number their storages from 0, so layers that do the same have the same shape, and share the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vrambudget.tape.segment_sizes import SMALL, units
from vrambudget.tape.steps import CARRIED, RepeatedStep

_FEWEST = 24  # small events of a part, but for the last
_LARGE = 1 << 50  # stands for an event of the large pool


@dataclass(slots=True)
class StepPart:
    """A part of a step: small events, with large ones between them.

    `shape` has them by names of its own: i for the i-th that is born, ~i for its end,
    ~(CARRIED + i) for the i-th end of what was there before; then sizes, 0 for those that grow.
    """

    events: list[int] = field(default_factory=list)  # the small ones
    shape: list[int] = field(default_factory=list)
    born: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)  # that were there: the step's, or CARRIED + c
    needs: list[int] = field(default_factory=list)  # units of what is born
    left: list[int] = field(default_factory=list)
    left_at: list[int] = field(default_factory=list)  # the same by their places in `born`
    growing: list[int] = field(default_factory=list)
    number: int = 0  # of the shape
    small: list[int] = field(default_factory=list)  # the shape, as `serve_small` reads it

    def add(self, event: int) -> None:
        """Add a small event."""
        self.events.append(event)
        if event >= 0:
            self.shape.append(len(self.born))
            self.born.append(event)
        elif ~event in self.born:
            self.shape.append(~self.born.index(~event))
        else:
            self.shape.append(~(CARRIED + len(self.freed)))
            self.freed.append(~event)

    def add_large(self) -> None:
        """Note that a large event comes here."""
        self.shape.append(_LARGE)

    @property
    def is_full(self) -> bool:
        """Whether a large event ends it."""
        return len(self.events) >= _FEWEST

    def close(
        self, needs: Sequence[int], growing: set[int], shapes: dict[tuple[int, ...], int]
    ) -> None:
        """Note what it leaves, and number it: parts of one shape have one number."""
        ends = {~event for event in self.events if event < 0}
        self.left_at = [at for at, i in enumerate(self.born) if i not in ends]
        self.left = [self.born[at] for at in self.left_at]
        self.growing = [i for i in self.born if i in growing]
        self.needs = [needs[i] for i in self.born]
        past = CARRIED - len(self.born)
        own = (event for event in self.shape if event != _LARGE)
        self.small = [event if event > ~CARRIED else event + past for event in own]
        shape = *self.shape, *(0 if i in growing else needs[i] for i in self.born)
        self.number = shapes.setdefault(shape, len(shapes))

    def levels(self, needs: Sequence[int], freed: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Return the most units more than before it, beside each large event, and in the end."""
        beside, level = [0], 0
        for event in self.shape:
            if event == _LARGE:
                beside.append(level)
                continue
            if event >= 0:
                level += needs[event]
            else:
                level -= needs[~event] if event > ~CARRIED else freed[~event - CARRIED]
            beside[-1] = max(beside[-1], level)
        return tuple(beside), level


class PartOutcome(NamedTuple):
    """What a part does: free blocks, blocks of what is left, units more than before."""

    free: tuple[int, ...]
    blocks: tuple[int, ...]
    change: int
    beside: tuple[int, ...]  # the most until its first large event, until its second, ...


class Whole(NamedTuple):
    """What all parts of a step do together."""

    free: tuple[int, ...]
    blocks: tuple[int, ...]
    change: int
    most: int  # units more than before the step
    outcomes: tuple[PartOutcome, ...]  # of the parts

    @property
    def beside(self) -> list[int]:
        """The most units more than before, until the first large event, until the second, ..."""
        beside, level = [0], 0
        for outcome in self.outcomes:
            beside[-1] = max(beside[-1], level + outcome.beside[0])
            beside += [level + most for most in outcome.beside[1:]]
            level += outcome.change
        return beside


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step as parts; it holds for steps with the same large storages."""

    parts: list[StepPart]
    large: list[int]  # events
    born: list[int]  # storages that are carried on
    died: list[int]  # numbers of what was carried into the step
    may_become_large: list[int]
    is_steady: bool  # the next step finds large what this one found
    small_there: list[int]  # numbers of what was carried into the step, is small, and dies in it
    left: list[int]  # small storages of the step that are there after it
    wholes: dict[tuple[Any, ...], Whole] = field(default_factory=dict)


def planned(
    step: RepeatedStep, carried: Sequence[bool], shapes: dict[tuple[int, ...], int]
) -> StepPlan:
    """Return a step's plan; `carried`: which storages that earlier steps left to it are large."""
    needs = [units(nbytes) for nbytes in step.sizes]
    part, parts, large, died = StepPart(), list[StepPart](), list[int](), list[int]()
    for event in step.pattern.events:
        old = ~event - CARRIED
        if old >= 0:
            died.append(old)
        if carried[old] if old >= 0 else needs[max(event, ~event)] > SMALL:
            if part.is_full:
                parts.append(part)
                part = StepPart()
            large.append(event)
            part.add_large()
        else:
            part.add(event)
    parts.append(part)
    growing = {i for i in step.growing if needs[i] <= SMALL}
    for part in parts:
        part.close(needs, growing, shapes)
    finals = step.pattern.finals
    are_large = [needs[f] > SMALL if f < CARRIED else carried[f - CARRIED] for f in finals]
    born = {final for final in finals if final < CARRIED}
    freed = dict.fromkeys(i for part in parts for i in part.freed)
    left = [i for part in parts for i in part.left if i not in freed]
    return StepPlan(
        parts,
        large,
        list(born),
        died,
        list(growing),
        are_large == list(carried),
        [i - CARRIED for i in freed if i >= CARRIED],
        left,
    )
