"""A deep model's tape from those of two shallow ones, if their middle repeats.

Two models that differ by two layers (Inductor orders the buffers of every other layer differently)
are compiled. Their tapes are laid side by side, phase by phase: what only the deeper one has must
repeat what lies before it, and the shallower one must have that twice. Then every number on the
tape (which storage an event is of, a storage's bytes, a module's place) must be on a plane:

    number(k, t) = a + b k + c t     k: which repetition; t: how often two layers were added

The tape of any depth is that of a larger t; each of its storages must be born once, and freed once,
later.

Not modelled: decisions that a compiler would take at another depth only, or by a layer's place.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from vrambudget.tape.events import Tape

_NUMBER = re.compile(r"\d+")
_TWICE = 2
_AHEAD = 8  # events after a stretch that must be alike for it to be taken as the end


class UnevenError(Exception):
    """The middle does not repeat."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """What repeats: its last two repetitions that both tapes have begin here."""

    shallow: int
    deep: int
    length: int
    added: int  # repetitions that the deeper tape has more
    room: int  # it may as well begin so much earlier
    shared: int = _TWICE  # repetitions that both have

    @property
    def end(self) -> int:
        """Where it ends in the shallower tape."""
        return self.shallow + self.shared * self.length

    def repetitions(self, events: list[int], start: int, many: int) -> list[list[int]]:
        """Return so many repetitions of a tape's events."""
        ends = range(start, start + many * self.length, self.length)
        return [events[i : i + self.length] for i in ends]


def deeper(shallow: Tape, deep: Tape, times: int) -> Tape:
    """Return the tape with `times` as many layers added to `shallow`'s as `deep` has more.

    Raises UnevenError.
    """
    if not (shallow.is_plain and deep.is_plain) or len(shallow.marks) != len(deep.marks):
        raise UnevenError
    made = _Laid(shallow, deep, times)
    ends = [sorted({0, *(m.position for m in t.marks), len(t.events)}) for t in (shallow, deep)]
    if len(ends[0]) != len(ends[1]):
        raise UnevenError
    sizes = {*shallow.sizes} & {*deep.sizes}
    described = [_described(t, sizes) for t in (shallow, deep)]
    moved = {0: 0}
    for (start, end), (there, stop) in zip(pairwise(ends[0]), pairwise(ends[1]), strict=True):
        stretches = _aligned(described[0][start:end], described[1][there:stop])
        numbers = shallow.events[start:end], deep.events[there:stop]
        made.lay(start, end, there, [_settled(each, *numbers) for each in stretches])
        moved[end] = len(made.events)
    return made.tape(moved)


def _described(tape: Tape, sizes: set[int]) -> list[tuple[Any, ...]]:
    """Return what two events must share to be the same at another depth: not which storage's.

    `sizes` are those that both tapes have; any other grows with the depth.
    """
    paths = [_NUMBER.sub("#", path) for path in tape.paths]
    columns = zip(tape.sizes, tape.purposes, tape.operations, tape.modules, strict=True)
    storages = [(s if s in sizes else 0, kind, name, paths[m]) for s, kind, name, m in columns]
    return [(e >= 0, *storages[e if e >= 0 else ~e]) for e in tape.events]


def _aligned(shallow: list[Any], deep: list[Any]) -> list[_Stretch]:
    """Return what repeats within a phase; its places are from the phase's beginning."""
    stretches = list[_Stretch]()
    i = j = 0
    while True:
        while i < len(shallow) and j < len(deep) and shallow[i] == deep[j]:
            i, j = i + 1, j + 1
        if i == len(shallow) and j == len(deep):
            return stretches
        added, length = _repeated(shallow, deep, i, j)
        start = i - _TWICE * length
        before = stretches[-1].end if stretches else 0
        back = range(start - 1, before - 1, -1)
        end = next((k for k in back if shallow[k] != shallow[k + length]), before - 1)
        stretches.append(_Stretch(start, j - _TWICE * length, length, added, start - end - 1))
        j += added * length


def _repeated(shallow: list[Any], deep: list[Any], i: int, j: int) -> tuple[int, int]:
    """Return how often `deep` has more of what, by its length. Raises UnevenError.

    What goes on alike for longer is taken first: one event may be like the next by chance.
    """
    more = (len(deep) - j) - (len(shallow) - i)
    for least in (_AHEAD, 1):
        ways = [
            (_added(shallow, deep, i, j, n, max(least, min(n, _AHEAD))), n)
            for n in range(1, more + 1)
        ]
        if any(added for added, _ in ways):
            return min(filter(all, ways))  # two layers at once, if they are
    raise UnevenError


def _added(  # noqa: PLR0917 - two tapes, a place in each, and how far to look
    shallow: list[Any], deep: list[Any], i: int, j: int, n: int, look: int
) -> int:
    """Return how often `deep` repeats the n that both have twice before; then both go on alike."""
    block, added = shallow[i - n : i], 0
    if i < _TWICE * n or shallow[i - _TWICE * n : i - n] != block:
        return 0
    while deep[j + added * n : j + (added + 1) * n] == block:
        added += 1
        after = j + added * n
        if shallow[i : i + look] == deep[after : after + look]:
            return added
    return 0


def _settled(stretch: _Stretch, shallow: list[int], deep: list[int]) -> _Stretch:
    """Return a stretch whose events' numbers are on planes: there, or somewhat earlier.

    If no two repetitions that both tapes have are, the first one frees what was made before the
    stretch: the second is the first one then.
    """
    for shared in (_TWICE, 1):
        past = (_TWICE - shared) * stretch.length
        for back in range(stretch.room + 1):
            settled = replace(
                stretch,
                shallow=stretch.shallow + past - back,
                deep=stretch.deep + past - back,
                shared=shared,
            )
            ours = settled.repetitions(shallow, settled.shallow, shared)
            theirs = settled.repetitions(deep, settled.deep, shared + stretch.added)
            if all(map(_are_on_plane, zip(*ours, strict=True), zip(*theirs, strict=True))):
                return settled
    raise UnevenError


def _are_on_plane(a: Sequence[int], b: Sequence[int]) -> bool:
    along = b[-1] - b[-2] if len(b) > 1 else 0
    return all(x == y[0] + along * k for y in (a, b) for k, x in enumerate(y))


class _Laid:
    """A tape that is being replayed."""

    def __init__(self, shallow: Tape, deep: Tape, times: int) -> None:
        self.shallow, self.deep, self.times = shallow, deep, times
        self.events = list[int]()
        self._result = Tape(
            expandable_on_bytes=shallow.expandable_on_bytes,
            driver_addresses=shallow.driver_addresses,
        )
        self._paths = {"": 0}

    def lay(self, start: int, end: int, there: int, stretches: list[_Stretch]) -> None:
        """Lay a phase down, from event `start` to `end`; in the deeper tape it begins `there`."""
        i, j = start, there
        for stretch in stretches:
            first, beside = start + stretch.shallow, there + stretch.deep
            if first < i:
                raise UnevenError
            self._once(i, j, first - i)
            self._often(first, beside, stretch)
            i = first + stretch.shared * stretch.length
            j = beside + (stretch.shared + stretch.added) * stretch.length
        self._once(i, j, end - i)

    def _once(self, i: int, j: int, length: int) -> None:
        for k in range(length):
            self._append((i + k,), (j + k,), 0)

    def _often(self, i: int, j: int, stretch: _Stretch) -> None:
        length, shared, added = stretch.length, stretch.shared, stretch.added
        for repetition in range(shared + added * self.times):
            for k in range(length):
                ours = tuple(i + n * length + k for n in range(shared))
                theirs = tuple(j + n * length + k for n in range(shared + added))
                self._append(ours, theirs, repetition)

    def _append(self, ours: tuple[int, ...], theirs: tuple[int, ...], k: int) -> None:
        """Append an event that is at these places in the two tapes, in its k-th repetition."""
        a = [self.shallow.events[place] for place in ours]
        b = [self.deep.events[place] for place in theirs]
        event = self._on_plane(a, b, k)
        self.events.append(event)
        if event < 0:
            return
        result = self._result
        if event != len(result.sizes):
            raise UnevenError
        result.purposes.append(self.shallow.purposes[a[0]])
        result.operations.append(self.shallow.operations[a[0]])
        sizes = [self.shallow.sizes[x] for x in a], [self.deep.sizes[x] for x in b]
        size = self._on_plane(*sizes, k)
        result.sizes.append(size)
        content = self.shallow.contents[a[0]]
        result.contents.append(content if size == sizes[0][0] else None)  # one that grows: no shape
        paths = [self.shallow.path_of(x) for x in a], [self.deep.path_of(x) for x in b]
        path = self._path(*paths, k)
        result.modules.append(self._paths.setdefault(path, len(self._paths)))

    def _on_plane(self, a: Sequence[int], b: Sequence[int], k: int) -> int:
        """Return the number of the k-th repetition. Raises UnevenError if they are on no plane."""
        if not _are_on_plane(a, b):
            raise UnevenError
        along = b[-1] - b[-2] if len(b) > 1 else 0
        return a[0] + along * k + (b[0] - a[0]) * self.times

    def _path(self, a: list[str], b: list[str], k: int) -> str:
        """Return a module's path, its numbers on planes."""
        numbers = [[[*map(int, _NUMBER.findall(path))] for path in paths] for paths in (a, b)]
        columns = zip(zip(*numbers[0], strict=True), zip(*numbers[1], strict=True), strict=True)
        answers = iter([self._on_plane([*ours], [*theirs], k) for ours, theirs in columns])
        return _NUMBER.sub(lambda _: str(next(answers)), a[0])

    def tape(self, moved: dict[int, int]) -> Tape:
        """Return the tape. Raises UnevenError if a storage is freed that does not live."""
        result = self._result
        result.events, result.paths = self.events, list(self._paths)
        both = zip(self.shallow.marks, self.deep.marks, strict=True)
        if any(a.steps or (a.step, a.phase) != (b.step, b.phase) for a, b in both):
            raise UnevenError
        result.marks = [
            a._replace(
                position=moved[a.position], period=self._on_plane((a.period,), (b.period,), 0)
            )
            for a, b in zip(self.shallow.marks, self.deep.marks, strict=True)
        ]
        if len(set(self.events)) != len(self.events) or any(_unborn(self.events)):
            raise UnevenError
        return result


def _unborn(events: list[int]) -> Iterator[int]:
    """Yield what is freed before it is born."""
    born = -1
    for event in events:
        born = max(born, event)
        if ~event > born:
            yield ~event
