"""Decoding steps that need not be traced: what they do is found from a few of them.

`steps_between` traces single steps on a tape of their own, each from the state that the loop would
be in: two far apart, and one between them. Where all three do the same and their sizes lie on a
line, so do all steps between. Over how many blocks a kernel splits its work is foreseen for each
step. Where steps differ otherwise (a window is full, rows are padded to multiples of eight) they
are divided at the most likely place, and looked at part by part.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from vrambudget.engine.context import context
from vrambudget.ops.attention.flash import KeySplit
from vrambudget.ops.reduce_buffers import SumSplit
from vrambudget.tape.events import Storage, Tape
from vrambudget.tape.steps import CARRIED, Pattern, Stretch

_ALIGNMENT = 8  # rows of a mask are padded to multiples of this


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step that was traced: what it does, and its sizes, of accumulators for each block."""

    pattern: Pattern
    sizes: tuple[int, ...]
    splits: tuple[KeySplit | SumSplit, ...]  # of its attention and its sums
    blocks_of: tuple[int, ...]  # which of these a storage is an accumulator of, -1: of none

    def does_as(self, other: "TracedStep") -> bool:
        """Whether another does the same."""
        return self.pattern == other.pattern and self.blocks_of == other.blocks_of


class Unsteady(Exception):  # noqa: N818 - no error: the steps have to be traced
    """A step leaves, or frees, what is not carried from step to step."""


def traced_step(
    carried: Callable[[], list[Storage]],
    kept: Callable[[], list[Storage]],
    grow: Callable[[], None],
    step: Callable[[], None],
) -> TracedStep:
    """Trace one step on a tape of its own; `grow` makes the state that it begins in.

    What is `kept` stays to the end, besides what each step carries to the next.
    """
    tape, workspaces, before_it = context.tape, dict(context.workspaces), context.splits
    context.tape, context.splits = (own := Tape(paths=tape.paths)), set()
    try:
        grow()
        before = {s.index: c for c, s in enumerate(carried()) if s.tape is own}
        others = {id(s): c for c, s in enumerate(carried()) if s.tape is not own}
        first, begin = len(own.sizes), len(own.events)
        step()
        events = own.events[begin:]
        finals = []
        for storage in carried():
            if storage.tape is not own:
                finals.append(CARRIED + others[id(storage)])
            elif storage.index < first:
                finals.append(CARRIED + before[storage.index])
            else:
                finals.append(storage.index - first)
        names = _named(events, first, before)
        left = {e for e in names if e >= 0} - {~e for e in names if e < 0}
        stays = {storage.index - first for storage in kept()}  # below 0: those of steps before
        if left != {f for f in (*finals, *stays) if 0 <= f < CARRIED}:
            raise Unsteady
        pattern = Pattern(tuple(names), tuple(finals), tuple(own.operations[first:]))
        splits = sorted(context.splits, key=lambda split: (len(split), split))
        shapes = {shape: n for n, split in enumerate(splits) for shape in split.accumulators}
        blocks_of = tuple(shapes.get(tuple(of[0]), -1) if of else -1 for of in own.contents[first:])
        counts = [*(split.blocks for split in splits), 1]
        shares = zip(own.sizes[first:], blocks_of, strict=True)
        sizes = tuple(size // counts[n] for size, n in shares)
        return TracedStep(pattern, sizes, tuple(splits), blocks_of)
    finally:
        context.tape, context.workspaces, context.splits = tape, workspaces, before_it


def _named(events: list[int], first: int, before: dict[int, int]) -> list[int]:
    names = []
    for event in events:
        if event >= first:
            names.append(event - first)
        elif ~event >= first:
            names.append(event + first)
        elif ~event in before:
            names.append(~(CARRIED + before[~event]))
        else:
            raise Unsteady
    return names


class _Run(NamedTuple):
    """Steps whose attention and sums are split over as many blocks."""

    steps: range
    counts: tuple[int, ...]  # of blocks; the last is 1, for what is none's

    def parts(self, period: int) -> list[tuple[object, range]]:
        """Return the steps a period apart, with what those have that do the same."""
        splits = tuple(count > 1 for count in self.counts)
        parts = (self.steps[n::period] for n in range(min(period, len(self.steps))))
        return [((splits, part[0] % period), part) for part in parts]


class _Line(NamedTuple):
    """Steps a period apart that do the same, with sizes on a line."""

    steps: range  # from the first to the last
    traced: TracedStep  # the first
    growth: tuple[int, ...]

    def sizes(self, step: int) -> tuple[int, ...]:
        """Return a step's sizes, of accumulators for each block."""
        turns, both = self.steps.index(step), zip(self.traced.sizes, self.growth, strict=True)
        return tuple(size + by * turns for size, by in both)

    def times(self, sizes: tuple[int, ...], counts: Sequence[int]) -> tuple[int, ...]:
        """Return sizes, of accumulators for so many blocks."""
        both = zip(sizes, self.traced.blocks_of, strict=True)
        return tuple(size * counts[n] for size, n in both)


class StretchFinder:
    """Finds stretches of identical steps; `trace` traces a step by its number.

    `odd`: steps known to be unlike those between them.
    """

    def __init__(
        self,
        trace: Callable[[int], TracedStep],
        length: int,
        *,
        aligned: bool,
        odd: range = range(0),
    ) -> None:
        self.trace, self.length, self.odd = trace, length, odd  # tokens before step 0
        self.period = _ALIGNMENT if aligned else 1
        self.known: dict[int, TracedStep] = {}

    def stretches(self, low: int, high: int) -> Iterator[Stretch]:
        """Yield stretches of the steps from `low` to `high`, both among them."""
        waiting = [(low, high)]
        while waiting:
            low, high = waiting.pop()
            found = self._identical(low, high)
            if found is not None:
                yield from found
                continue
            cut = self._cut(low, high)
            waiting += (cut + 1, high), (low, cut)

    def _identical(self, low: int, high: int) -> list[Stretch] | None:
        """Return the steps' runs, if the steps of all that do the same are on a line."""
        runs = self._runs(low, high)
        if runs is None:
            return None
        parts: dict[object, list[range]] = {}
        for run in runs:
            for kind, steps in run.parts(self.period):
                parts.setdefault(kind, []).append(steps)
        lines = {}
        for kind, each in parts.items():
            line = self._line(each)
            if line is None:
                return None
            lines[kind] = line
        return [_stretch(run, [lines[of] for of, _ in run.parts(self.period)]) for run in runs]

    def _runs(self, low: int, high: int) -> list[_Run] | None:
        """Return the steps in runs; None where the sizes of a split do not grow by the token."""
        now, last, further = self._at(low).splits, self._at(high).splits, high - low
        if [*map(type, now)] != [*map(type, last)]:
            return None
        grown = [
            tuple(b - a for a, b in zip(*each, strict=True)) for each in zip(now, last, strict=True)
        ]
        if {*chain(*grown)} - {0, further}:
            return None
        growth = [tuple(map(bool, by)) for by in grown]
        runs: list[_Run] = []
        while low <= high:
            counts = (*(x.blocks for x in now), 1)
            steady = (split.steady(by) for split, by in zip(now, growth, strict=True))
            steps = min([high - low, *steady]) + 1
            begin = runs.pop().steps.start if runs and runs[-1].counts == counts else low
            low += steps
            runs.append(_Run(range(begin, low), counts))
            now = tuple(x.grown(steps, by) for x, by in zip(now, growth, strict=True))
        return runs

    def _line(self, parts: list[range]) -> _Line | None:
        """Return the line of steps, if the first, the last and one between them are on one."""
        steps = range(parts[0][0], parts[-1][-1] + 1, self.period)
        first, last, turns = self._at(steps[0]), self._at(steps[-1]), max(1, len(steps) - 1)
        if not first.does_as(last):
            return None
        differences = [b - a for a, b in zip(first.sizes, last.sizes, strict=True)]
        if any(difference % turns for difference in differences):
            return None
        line = _Line(steps, first, tuple(difference // turns for difference in differences))
        part = parts[(len(parts) - 1) // 2]
        middle = part[(len(part) - 1) // 2]
        between = self._at(middle)
        is_on_it = first.does_as(between) and line.sizes(middle) == between.sizes
        return line if is_on_it else None

    def _cut(self, low: int, high: int) -> int:
        """Return where to divide: beside an odd step, and behind the one after it.

        Else after a number of tokens with most zeros at its end.
        """
        if self.odd:
            turns = max(0, -(-(low - 1 - self.odd.start) // self.odd.step))
            step = self.odd[turns]
            beside = [at for at in (step - 1, step, step + 1) if low <= at < high]
            if beside:
                return beside[0]
        begin, last = self.length + low - 1, self.length + high - 1
        bit = (begin ^ last).bit_length() - 1  # the highest that changes from there to here
        return (last >> bit << bit) - self.length

    def _at(self, step: int) -> TracedStep:
        if step not in self.known:
            self.known[step] = self.trace(step)
        return self.known[step]


def _stretch(run: _Run, lines: list[_Line]) -> Stretch:
    """Return a run's steps; of the first few the line that each is on."""
    return Stretch(
        run.steps.start,
        len(run.steps),
        tuple(line.traced.pattern for line in lines),
        tuple(
            line.times(line.sizes(step), run.counts)
            for line, step in zip(lines, run.steps, strict=False)
        ),
        tuple(line.times(line.growth, run.counts) for line in lines),
    )
