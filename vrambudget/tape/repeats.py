"""Parts of a tape that repeat others: copied, or found to be equal.

`append_copy` appends events again, with storages of their own. `repeats` compares a part of the
tape with the part before it. It skips what was copied in both from one source, at the same
distance: those events are equal by construction, and they are nearly all of a long step.
"""

from typing import NamedTuple

from vrambudget.tape.events import Tape
from vrambudget.tape.packing import died_in, renamed


class TapePlace(NamedTuple):
    """A place on the tape: how many events, storages, marks and copies it had."""

    event: int
    storage: int
    mark: int
    replayed: int


def place_of(tape: Tape) -> TapePlace:
    """Return the end of the tape."""
    return TapePlace(len(tape.events), len(tape.sizes), len(tape.marks), len(tape.replayed))


def append_copy(tape: Tape, source: list[int], first: int, shift: int, older_shift: int) -> None:
    """Append a copy of events, new storages (from `first` on) and older ones shifted by so many.

    Older storages are only freed, so only frees may have the other shift. The tape has to be on the
    fast path (`Tape.is_fast`), where an event is an index or the complement of one.
    """
    start, last = len(tape.events), ~first
    tape.events += [
        event + shift if event >= 0 else event - (shift if event <= last else older_shift)
        for event in source
    ]
    tape.replayed.append((start, len(tape.events), id(source), shift, older_shift))


def repeats(tape: Tape, before: TapePlace, here: TapePlace, end: TapePlace) -> bool:
    """Whether the tape from `here` to `end` equals that from `before` to `here`.

    A step frees what the step before it left (the old gradients, say). So the storages that are
    older than a part and die in it are paired, oldest with oldest.
    """
    shift = here.storage - before.storage
    if any(b - a != c - b for a, b, c in zip(before[:3], here[:3], end[:3], strict=True)):
        return False
    columns = tape.sizes, tape.purposes, tape.operations
    middle, stop = here.storage, end.storage
    if any(x[before.storage : middle] != x[middle:stop] for x in columns):
        return False
    earlier, later = _not_replayed_twice(tape, before, here, end)
    first = before.storage
    found = sorted(i for i in died_in(earlier, is_fast=tape.is_fast) if i < first)
    left = sorted(i for i in died_in(later, is_fast=tape.is_fast) if i < middle)
    if len(found) != len(left) or (left and left[0] < first):
        return False
    moved = dict(zip(found, left, strict=True))
    if any(x[old] != x[new] for old, new in moved.items() for x in columns):
        return False
    expected = renamed(earlier, shift, first, moved, is_fast=tape.is_fast)
    return expected == later or _in_order(expected) == _in_order(later)


def _not_replayed_twice(
    tape: Tape, before: TapePlace, here: TapePlace, end: TapePlace
) -> tuple[list[int], list[int]]:
    """Return the events of both parts, without what was copied in both from one source."""
    period, shift = here.event - before.event, here.storage - before.storage
    earlier, later = (
        tape.replayed[before.replayed : here.replayed],
        tape.replayed[here.replayed : end.replayed],
    )
    expected = [(a + period, b + period, c, d + shift, e + shift) for a, b, c, d, e in earlier]
    if expected != later:
        earlier = later = []
    return _without(tape, before, here, earlier), _without(tape, here, end, later)


def _without(
    tape: Tape, start: TapePlace, end: TapePlace, replayed: list[tuple[int, int, int, int, int]]
) -> list[int]:
    events, position = list[int](), start.event
    for begin, stop, *_ in replayed:
        events += tape.events[position:begin]
        position = stop
    return events + tape.events[position : end.event]


def _in_order(events: list[int]) -> list[int]:
    """Return events with frees that follow one another sorted: their order changes nothing."""
    ordered, frees = list[int](), list[int]()
    for event in events:
        if event < 0:
            frees.append(event)
            continue
        ordered += sorted(frees)
        ordered.append(event)
        frees = []
    return ordered + sorted(frees)
