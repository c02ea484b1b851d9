"""The tape: every allocation and free of a job, in order.

    events      one after the other, as integers: `Tape.read` makes `Event`s of them
    sizes       bytes that storage i asked for
    purposes    what storage i is for (one of PURPOSES)
    operations  the operation that made storage i
    contents    shape and dtype of the tensor that storage i was made for, None for raw bytes
    modules     the module that made storage i: its path is `paths[modules[i]]`
    marks       where in `events` a phase begins, and where the loop does something that only
                the allocator sees (empty_cache, reset_peak_memory_stats)

A storage is born and dies once. Between them its bytes may go and come back
(`untyped_storage().resize_(0)`, and to its size again), each time on the stream that is current.

Everything the program shows is a function of a tape. It knows bytes *requested*; what the caching
allocator makes of them is `vrambudget.tape.allocator`'s business.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

from vrambudget.dtypes import DType
from vrambudget.errors import TooLargeError
from vrambudget.tape.marks import Mark, Phase
from vrambudget.tape.packing import (
    SPECIAL,
    Event,
    EventKind,
    decode,
    encode,
    signed,
    stream_bits,
)
from vrambudget.units import format_bytes

if TYPE_CHECKING:
    from vrambudget.tape.settling import LastStep

_LARGEST = 2**46  # bytes of one storage; beyond is a slip, and slow to follow
MOST_STORAGES = 3_000_000  # of a job; 94 layers of 128 experts, one by one, make 2,600,000

Content = tuple[tuple[int, ...], DType] | None


class Purpose(StrEnum):
    """What a storage is for. A storage has one purpose for its whole life."""

    WEIGHTS = "weights"
    AUTOCAST_COPIES = "autocast copies"
    GRADIENTS = "gradients"
    OPTIMIZER_STATES = "optimizer states"
    ACTIVATIONS = "activations"
    KV_CACHE = "KV cache"
    LOGITS_AND_LOSS = "logits and loss"
    TEMPORARIES = "temporaries"
    WORKSPACES = "workspaces"
    INPUTS = "inputs"
    GATHERED = "gathered weights"
    COMMUNICATION = "communication buffers"


@dataclass(slots=True)
class Tape:
    """A recording. `Any` in `sizes`: NumPy arrays of sizes may stand in for one size."""

    events: list[int] = field(default_factory=list)
    sizes: list[Any] = field(default_factory=list)
    purposes: list[Purpose] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    contents: list[Content] = field(default_factory=list)
    modules: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=lambda: [""])
    marks: list[Mark] = field(default_factory=list)
    replayed: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # see tape.repeats
    expandable_on_bytes: int | None = None  # the GPU's memory, where PyTorch's segments expand
    driver_addresses: str = "rising"  # where the driver puts segments that do not expand
    last_step: "LastStep | None" = None  # which may be replayed again: `tape.settling`
    is_fast: bool = True  # nothing but allocations and frees, all on the default stream
    module: int = 0  # what storages are made by now; 0: by none
    stream_bits: int = 0  # what their events have for the stream that is current

    @property
    def stream(self) -> int:
        """The stream on which storages get their bytes now; 0 is the default stream."""
        return decode(self.stream_bits).stream

    @stream.setter
    def stream(self, stream: int) -> None:
        self.stream_bits = stream_bits(stream)
        self.is_fast = self.is_fast and not stream

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        """Yield the events from position `start` to `stop`."""
        return map(decode, islice(self.events, start, stop))

    def event(self, position: int) -> Event:
        """Return the event at a position."""
        return decode(self.events[position])

    def close(self) -> None:
        """End the recording: what dies from now on is no event of it."""
        self.events = list(self.events)

    def changes(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield the storage whose bytes come (1) or go (-1), of each event that does either."""
        numbers, neither = self._signed(start, stop), len(self.sizes)
        return ((n, 1) if n >= 0 else (~n, -1) for n in numbers if n != neither)

    def _signed(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Return events' storages, inverted where bytes go; of others how many storages there are.

        Much of the time of a search.
        """
        numbers = self.events[start:stop]
        return numbers if self.is_fast else signed(numbers, neither=len(self.sizes))

    def alive_bytes(self, start: int = 0, end: int | None = None) -> Iterator[Any]:
        """Yield how many bytes are asked for before and after each event, from `start` to `end`."""
        sizes = self.sizes
        changes = [*sizes, 0, *(-size for size in reversed(sizes))]  # [~i]: what i's death changes
        alive = accumulate(map(changes.__getitem__, self._signed()), initial=0)
        return islice(alive, start, None if end is None else end + 1)

    def peak_requested_bytes(self, start: int = 0, end: int | None = None) -> Any:
        """Return the most bytes that are asked for at once, from `start` to `end`."""
        return max(self.alive_bytes(start, end))

    def built(self) -> int:
        """Return the event with which counters begin: the model is there."""
        return max((mark.position for mark in self.marks if mark.resets_allocator), default=0)

    def last_passes(self) -> tuple[int, int]:
        """Return from where to where the last forward and backward passes are."""
        begins = {mark.phase: mark.position for mark in self.marks}
        begin, end = begins.get(Phase.FORWARD, 0), begins.get(Phase.OPTIMIZER_STEP, 0)
        return begin, end if end > begin else len(self.events)

    def alive_at(self, position: int) -> list[int]:
        """Return the storages that have bytes right after an event, those for longest first."""
        if self.is_fast:
            events = self.events[: position + 1]
            dead = {~event for event in events if event < 0}
            return [event for event in events if event >= 0 and event not in dead]
        alive: dict[int, None] = {}
        for storage, change in self.changes(0, position + 1):
            if change > 0:
                alive[storage] = None
            elif change < 0:
                del alive[storage]
        return list(alive)

    def next_born(self, position: int) -> int:
        """Return the first storage that is born at a position or after it."""
        events = self.events
        while not 0 <= events[position] < SPECIAL:
            position += 1
        return decode(events[position]).storage

    def path_of(self, storage: int) -> str:
        """Return the path of the module that made a storage, as transformers names it, or ""."""
        return self.paths[self.modules[storage]]

    def copy_storages(self, first: int, stop: int, source: int = 0, target: int = 0) -> int:
        """Append storages like `first` to `stop`, of no event yet; return how far they are off.

        What was made by the module `source` and those below it, the copies of `target` make.
        """
        shift = len(self.sizes) - first
        if shift + stop > MOST_STORAGES:
            raise _too_long()
        self.sizes += self.sizes[first:stop]
        self.purposes += self.purposes[first:stop]
        self.operations += self.operations[first:stop]
        self.contents += self.contents[first:stop]
        modules, by = self.modules[first:stop], target - source
        self.modules += [m + by if m >= source else m for m in modules] if by else modules
        return shift

    def adopted(self, index: int) -> "Storage":
        """Return the storage of an allocation that the tape has: its life is the caller's now."""
        storage = Storage.__new__(Storage)
        storage.tape, storage.events, storage.index = self, self.events, index
        return storage

    def mark(
        self, step: int, phase: str, *, resets_allocator: bool = False, empties_cache: bool = False
    ) -> None:
        """Note that `phase` of `step` begins here."""
        self.marks.append(Mark(len(self.events), step, phase, resets_allocator, empties_cache))


def _too_long() -> TooLargeError:
    return TooLargeError(
        f"this job makes more than {MOST_STORAGES:,} tensors, too many to trace",
        hint="look for a slip in layers and experts; steps and micro-batches (--grad-accum) after "
        "the first few repeat them, so fewer say as much",
    )


class Storage:
    """Bytes on the device, from this object's birth to its last reference's death."""

    __slots__ = ("events", "index", "tape")

    def __init__(
        self, tape: Tape, nbytes: Any, purpose: Purpose, operation: str, content: Content = None
    ) -> None:
        if nbytes.__class__ is int and not 0 < nbytes <= _LARGEST:
            if nbytes:
                self.events, self.index = list[int](), 0
                raise TooLargeError(
                    f"{operation} would make one tensor of {format_bytes(nbytes)}: "
                    f"more than {format_bytes(_LARGEST)} is no job for any GPU"
                )
            tape = Tape()  # the allocator is not asked for nothing
        elif isinstance(nbytes, float | str | list | tuple):
            self.events, self.index = list[int](), 0
            raise TypeError(f"{operation} of {nbytes!r:.40} bytes")
        sizes = tape.sizes
        self.tape = tape
        self.events = events = tape.events
        self.index = index = len(sizes)
        if index >= MOST_STORAGES:
            self.events = []  # what is not on the tape is not freed on it
            raise _too_long()
        sizes.append(nbytes)
        tape.purposes.append(purpose)
        tape.operations.append(operation)
        tape.contents.append(content)
        tape.modules.append(tape.module)
        events.append(index + tape.stream_bits)

    def __del__(self) -> None:
        try:
            self.events.append(~self.index)
        except AttributeError:  # a signal's handler raised at its birth
            return

    @property
    def is_released(self) -> bool:
        """Whether its bytes were given back; setting it is no event."""
        return isinstance(self, _Released)

    @is_released.setter
    def is_released(self, is_released: bool) -> None:
        self.__class__ = _Released if is_released else Storage

    @property
    def purpose(self) -> Purpose:
        """What these bytes are for."""
        return self.tape.purposes[self.index]

    @purpose.setter
    def purpose(self, purpose: Purpose) -> None:
        self.tape.purposes[self.index] = purpose

    def release(self) -> None:
        """Give the bytes back and live on: `untyped_storage().resize_(0)`."""
        self._note(EventKind.RELEASE)
        self.is_released = True

    def fill(self) -> None:
        """Ask for the bytes again, on the stream that is current, if they were given back."""

    def record_stream(self, stream: int) -> None:
        """Note that work on `stream` reads this: `torch.Tensor.record_stream`.

        Once freed, the block waits for that work to be over.
        """
        self._note(EventKind.RECORD_STREAM, stream)

    def _note(self, kind: EventKind, stream: int = 0) -> None:
        self.tape.is_fast = False
        self.events.append(encode(Event(kind, self.index, stream)))


class _Released(Storage):
    """A storage whose bytes were given back."""

    __slots__ = ()

    def __del__(self) -> None:
        self._note(EventKind.END)

    def release(self) -> None:
        """Stay as it is."""

    def fill(self) -> None:
        """Ask for the bytes again, on the stream that is current."""
        self._note(EventKind.FILL, self.tape.stream)
        self.is_released = False

    def record_stream(self, stream: int) -> None:
        """Do nothing: there is no block that could wait."""
