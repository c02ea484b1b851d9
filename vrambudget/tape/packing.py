"""One event of a tape, and the integer that it is kept as. Only `vrambudget.tape` knows the latter.

    kind          integer                          what happens
    allocate      storage + (stream << 32)         a storage is born
    free          ~storage                         it is freed
    fill          allocate's + (1 << 48)           a released storage gets bytes once more
    release       ~(storage + (1 << 48))           its bytes go back, it lives on
    record_stream allocate's + (2 << 48)           work on that stream reads it, too
    end           storage + (3 << 48)              a released storage is freed: no bytes move

So `i` and `~i` are all that a tape on the default stream needs; the signs are those of the bytes;
and all functions here but `decode` take NumPy's arrays of integers as well.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

_STREAM_BITS = 32
_KIND_BITS = 48
_STORAGE_MASK = (1 << _STREAM_BITS) - 1
_STREAM_MASK = (1 << (_KIND_BITS - _STREAM_BITS)) - 1

ON_DEFAULT = 1 << _STREAM_BITS
"""An event `e` is `i` or `~i` where -ON_DEFAULT <= e < ON_DEFAULT."""

SPECIAL = 1 << _KIND_BITS
"""An event `e` is an allocation where 0 <= e < SPECIAL, a free of ~e where -SPECIAL <= e < 0."""


class EventKind(IntEnum):
    """What an event does; the numbers are the bits above the storage and the stream."""

    ALLOCATE = 0
    FREE = -1
    FILL = 1
    RELEASE = -2
    RECORD_STREAM = 2
    END = 3


class Event(NamedTuple):
    """One event: `stream` is the one that bytes are asked for on, or that a storage is used on."""

    kind: EventKind
    storage: int
    stream: int = 0

    @property
    def change(self) -> int:
        """1 where the storage's bytes come, -1 where they go, 0 where neither."""
        return _CHANGES[self.kind]


_KINDS = {int(kind): kind for kind in EventKind}
_CHANGES = {kind: (kind < EventKind.RECORD_STREAM) - 2 * (kind < 0) for kind in EventKind}


def stream_bits(stream: int) -> int:
    """Return what an allocation's integer has for its stream."""
    if not 0 <= stream <= _STREAM_MASK:
        raise ValueError(f"a stream is a number from 0 to {_STREAM_MASK}, not {stream}")
    return stream << _STREAM_BITS


def encode(event: Event) -> int:
    """Return an event's integer."""
    number = event.storage + stream_bits(event.stream)
    if event.kind < 0:
        return ~(number + (~event.kind << _KIND_BITS))
    return number + (event.kind << _KIND_BITS)


def decode(number: int) -> Event:
    """Return the event of an integer."""
    kind = _KINDS[number >> _KIND_BITS]
    return Event(kind, storage_of(number), stream_of(number))


def storage_of(number: Any) -> Any:
    """Return an event's storage."""
    return (number ^ (number >> 63)) & _STORAGE_MASK


def stream_of(number: Any) -> Any:
    """Return an event's stream."""
    return ((number ^ (number >> 63)) >> _STREAM_BITS) & _STREAM_MASK


def on_storage(number: int, storage: int) -> int:
    """Return an event like this of another storage."""
    if number >= 0:
        return number - (number & _STORAGE_MASK) + storage
    return number + (~number & _STORAGE_MASK) - storage


def change_of(number: Any) -> Any:
    """Return 1 where the storage's bytes come, -1 where they go, 0 where neither."""
    return 1 * (number < EventKind.RECORD_STREAM << _KIND_BITS) - 2 * (number < 0)


def signed(numbers: Iterable[int], neither: int) -> list[int]:
    """Return each event's storage, inverted where its bytes go, `neither` where none come or go."""
    mask, none = _STORAGE_MASK, EventKind.RECORD_STREAM << _KIND_BITS
    return [
        ~(~number & mask) if number < 0 else number & mask if number < none else neither
        for number in numbers
    ]


def died_in(numbers: Iterable[int], *, is_fast: bool) -> set[int]:
    """Return the storages that are freed in these events; sooner where `Tape.is_fast`."""
    if is_fast:
        return {~number for number in numbers if number < 0}
    ends = EventKind.END << _KIND_BITS
    return {storage_of(number) for number in numbers if -SPECIAL <= number < 0 or number >= ends}


def frees(storages: Iterable[int]) -> list[int]:
    """Return the integers of these storages' frees."""
    return [~storage for storage in storages]


def without(numbers: Iterable[int], storages: Container[int]) -> list[int]:
    """Return a plain tape's events, but not the allocations of `storages`."""
    return [number for number in numbers if number not in storages]


def pieces(
    numbers: Iterable[int], cut_at: Container[int], leave_out: Container[int]
) -> Iterator[tuple[list[int], int]]:
    """Yield a plain tape's events up to where a storage of `cut_at` is freed, and which.

    The last piece ends with none: -1. Allocations of `leave_out` are in no piece.
    """
    part = list[int]()
    for number in numbers:
        if ~number in cut_at:
            yield part, ~number
            part = []
        elif number not in leave_out:
            part.append(number)
    yield part, -1


def renamed(
    numbers: Iterable[int], shift: int, first: int, others: Mapping[int, int], *, is_fast: bool
) -> list[int]:
    """Return these events with storages from `first` on `shift` higher.

    Older ones are named as in `others`, or as they are; on a plain tape all that die are there.
    """
    if is_fast:
        last = ~first
        return [
            number + shift
            if number >= 0
            else number - shift
            if number <= last
            else ~others[~number]
            for number in numbers
        ]

    def named(number: int) -> int:
        old = storage_of(number)
        by = shift if old >= first else others.get(old, old) - old
        return number + by if number >= 0 else number - by

    return [named(number) for number in numbers]
