"""Decoding steps that need not be traced: what they do is found from a few of them.

`steps_between` traces single steps on a tape of their own, each from the state that the loop would
be in: two far apart, and one between them. Where all three do the same and their sizes lie on a
line, so do all steps between. Where not (attention's kernel splits its keys over more blocks, a
window is full, rows are padded to multiples of eight) the steps are divided at the most likely
place, and looked at part by part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vrambudget.engine.context import context
from vrambudget.tape.events import Storage, Tape
from vrambudget.tape.steps import CARRIED, Pattern, Stretch

_ALIGNMENT = 8  # rows of a mask are padded to multiples of this


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step that was traced: what it does, and its sizes."""

    pattern: Pattern
    sizes: tuple[int, ...]


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
    tape, workspaces = context.tape, dict(context.workspaces)
    context.tape = own = Tape(paths=tape.paths)
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
        return TracedStep(pattern, tuple(own.sizes[first:]))
    finally:
        context.tape, context.workspaces = tape, workspaces


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
            found = self._alike(low, high)
            if found is not None:
                yield found
                continue
            cut = self._cut(low, high)
            waiting += (cut + 1, high), (low, cut)

    def _alike(self, low: int, high: int) -> Stretch | None:
        period, count = self.period, high - low + 1
        first = [self._at(k) for k in range(low, min(low + period, high + 1))]
        growth = [(0,) * len(traced.sizes) for traced in first]
        for which in range(min(period, count)):
            turns = (high - low - which) // period
            if not turns:
                continue
            last = self._at(low + which + turns * period)
            by = _growth(first[which], last, turns)
            if by is None:
                return None
            middle = turns // 2
            if middle and not _is_on_line(
                first[which], self._at(low + which + middle * period), by, middle
            ):
                return None
            growth[which] = by
        return Stretch(
            low,
            count,
            tuple(traced.pattern for traced in first),
            tuple(traced.sizes for traced in first),
            tuple(growth),
        )

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


def _growth(first: TracedStep, last: TracedStep, turns: int) -> tuple[int, ...] | None:
    if first.pattern != last.pattern:
        return None
    differences = [b - a for a, b in zip(first.sizes, last.sizes, strict=True)]
    if any(difference % turns for difference in differences):
        return None
    return tuple(difference // turns for difference in differences)


def _is_on_line(first: TracedStep, middle: TracedStep, growth: tuple[int, ...], turns: int) -> bool:
    expected = tuple(a + by * turns for a, by in zip(first.sizes, growth, strict=True))
    return first.pattern == middle.pattern and expected == middle.sizes
