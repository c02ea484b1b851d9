"""The tape: every allocation and free of a job, in order.

    events      i: storage i is allocated, ~i: storage i is freed
    sizes       bytes that storage i asked for
    purposes    what storage i is for (one of PURPOSES)
    operations  the operation that made storage i
    contents    shape and dtype of the tensor that storage i was made for, None for raw bytes
    marks       where in `events` a phase begins, and where the loop does something that only
                the allocator sees (empty_cache, reset_peak_memory_stats)

Everything the program shows is a function of a tape. It knows bytes *requested*; what the caching
allocator makes of them is `vrambudget.tape.allocator`'s business.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Any

from vrambudget.dtypes import DType
from vrambudget.errors import TooLargeError
from vrambudget.units import format_bytes

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
    LOGITS_AND_LOSS = "logits and loss"
    TEMPORARIES = "temporaries"
    WORKSPACES = "workspaces"
    INPUTS = "inputs"


class Phase(StrEnum):
    """What the loop is doing."""

    BUILD = "build"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    STEP_END = "step_end"


@dataclass(frozen=True, slots=True)
class Mark:
    """From `events[position]` on the loop is in `phase` of `step` (steps count from 0)."""

    position: int
    step: int
    phase: Phase
    resets_allocator: bool = False  # torch.cuda.empty_cache() and reset_peak_memory_stats()
    period: int = 0  # so many events from here on repeat as many before, with storages of their own


@dataclass(slots=True)
class Tape:
    """A recording. `Any` in `sizes`: NumPy arrays of sizes may stand in for one size."""

    events: list[int] = field(default_factory=list)
    sizes: list[Any] = field(default_factory=list)
    purposes: list[Purpose] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    contents: list[Content] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    laid: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # see tape.repeats
    expandable_on_bytes: int | None = None  # the card's memory, where PyTorch's segments expand

    def close(self) -> None:
        """End the recording: what dies from now on is no event of it."""
        self.events = list(self.events)

    def peak_requested_bytes(self) -> Any:
        """Return the most bytes that are asked for and not freed at any moment."""
        sizes = self.sizes
        changes = (sizes[i] if i >= 0 else -sizes[~i] for i in self.events)
        return max(accumulate(changes), default=0)

    def copy_storages(self, first: int, stop: int) -> int:
        """Append storages like `first` to `stop`, of no event yet; return how far they are off."""
        shift = len(self.sizes) - first
        if shift + stop > MOST_STORAGES:
            raise _too_long()
        self.sizes += self.sizes[first:stop]
        self.purposes += self.purposes[first:stop]
        self.operations += self.operations[first:stop]
        self.contents += self.contents[first:stop]
        return shift

    def adopted(self, index: int) -> "Storage":
        """Return the storage of an allocation that the tape has: its life is the caller's now."""
        storage = Storage.__new__(Storage)
        storage.events, storage.purposes, storage.index = self.events, self.purposes, index
        return storage

    def mark(self, step: int, phase: Phase, *, resets_allocator: bool = False) -> None:
        """Note that `phase` of `step` begins here."""
        self.marks.append(Mark(len(self.events), step, phase, resets_allocator))


def _too_long() -> TooLargeError:
    return TooLargeError(
        f"this job makes more than {MOST_STORAGES:,} tensors, too many to follow",
        hint="look for a slip in layers and experts; steps and micro-batches (--grad-accum) after "
        "the first few repeat them, so fewer tell as much",
    )


class Storage:
    """Bytes on the device, from this object's birth to its last reference's death."""

    __slots__ = ("events", "index", "purposes")

    def __init__(
        self, tape: Tape, nbytes: Any, purpose: Purpose, operation: str, content: Content = None
    ) -> None:
        if nbytes.__class__ is int and not 0 < nbytes <= _LARGEST:
            self.events, self.purposes, self.index = [], [purpose], 0
            if nbytes:
                raise TooLargeError(
                    f"{operation} would make one tensor of {format_bytes(nbytes)}: "
                    f"more than {format_bytes(_LARGEST)} is no job for any card"
                )
            return  # the allocator is not asked for nothing
        self.events = tape.events
        self.purposes = tape.purposes
        self.index = index = len(tape.sizes)
        if index >= MOST_STORAGES:
            raise self._refused(purpose)
        tape.sizes.append(nbytes)
        tape.purposes.append(purpose)
        tape.operations.append(operation)
        tape.contents.append(content)
        tape.events.append(index)

    def _refused(self, purpose: Purpose) -> TooLargeError:
        """Return the error of a tape that is full; what was not put on it is not freed on it."""
        self.events, self.purposes, self.index = [], [purpose], 0
        return _too_long()

    def __del__(self) -> None:
        self.events.append(~self.index)

    @property
    def purpose(self) -> Purpose:
        """What these bytes are for."""
        return self.purposes[self.index]

    @purpose.setter
    def purpose(self, purpose: Purpose) -> None:
        self.purposes[self.index] = purpose
