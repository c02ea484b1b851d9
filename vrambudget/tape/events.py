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

from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate
from typing import Any

from vrambudget.dtypes import DType
from vrambudget.errors import TooLargeError
from vrambudget.units import format_bytes

_LARGEST = 2**46  # bytes of one storage; beyond is a slip, and slow to follow

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
    expandable_on_bytes: int | None = None  # the card's memory, where PyTorch's segments expand
    # Storages that copies replaced: the objects of Python stand for the newest copy.
    _newest: dict[int, int] = field(default_factory=dict)
    _settled: int = 0  # events up to here name storages as they are

    def close(self) -> None:
        """End the recording: what dies from now on is no event of it."""
        self._settle()
        self.events = list(self.events)

    def peak_requested_bytes(self) -> Any:
        """Return the most bytes that are asked for and not freed at any moment."""
        sizes = self.sizes
        changes = (sizes[i] if i >= 0 else -sizes[~i] for i in self.events)
        return max(accumulate(changes), default=0)

    def repeat_step(self, step: int) -> bool:
        """Append a copy of the last step as `step`; see `repeat`."""
        since = next(n for n, mark in enumerate(self.marks) if mark.step == step - 1)
        return self.repeat(since, step)

    def repeat(self, since: int, step: int) -> bool:
        """Append a copy of all from mark number `since` on, if the loop has come to a steady state.

        It has where the storages that this part left behind are, in order of birth and byte for
        byte, those that it found and freed: the next does the same with them. Returns whether.
        """
        self._settle()
        marks = self.marks[since:]
        start = marks[0].position
        events = self.events[start:]
        born = {i for i in events if i >= 0}
        first = min(born)
        found = sorted(~i for i in events if i < 0 and ~i < first)
        left = sorted(born - {~i for i in events if i < 0})
        if [self._role(i) for i in found] != [self._role(i) for i in left]:
            return False
        shift = self.copy_storages(first, len(self.sizes))
        moved = {~old: ~new for old, new in zip(found, left, strict=True)}
        marks[0] = replace(marks[0], period=len(events))
        self.marks += (
            replace(mark, position=mark.position + len(events), step=step) for mark in marks
        )
        self.events += [
            i + shift if i >= first else moved[i] if i in moved else i - shift for i in events
        ]
        objects = {newest: index for index, newest in self._newest.items()}
        self._newest.update((objects.get(index, index), index + shift) for index in left)
        self._settled = len(self.events)
        return True

    def copy_storages(self, first: int, stop: int) -> int:
        """Append storages like `first` to `stop`, of no event yet; return how far they are off."""
        shift = len(self.sizes) - first
        self.sizes += self.sizes[first:stop]
        self.purposes += self.purposes[first:stop]
        self.operations += self.operations[first:stop]
        self.contents += self.contents[first:stop]
        return shift

    def _settle(self) -> None:
        """Let what objects freed since then name the newest copies of their storages."""
        if self._newest:
            for position in range(self._settled, len(self.events)):
                freed = ~self.events[position]
                if freed in self._newest:
                    self.events[position] = ~self._newest.pop(freed)
        self._settled = len(self.events)

    def adopted(self, index: int) -> "Storage":
        """Return the storage of an allocation that the tape has: its life is the caller's now."""
        storage = Storage.__new__(Storage)
        storage.events, storage.purposes, storage.index = self.events, self.purposes, index
        return storage

    def _role(self, storage: int) -> tuple[Any, Purpose, str]:
        return self.sizes[storage], self.purposes[storage], self.operations[storage]

    def mark(
        self, step: int, phase: Phase, *, resets_allocator: bool = False, period: int = 0
    ) -> None:
        """Note that `phase` of `step` begins here."""
        self._settle()
        self.marks.append(Mark(len(self.events), step, phase, resets_allocator, period))


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
        tape.sizes.append(nbytes)
        tape.purposes.append(purpose)
        tape.operations.append(operation)
        tape.contents.append(content)
        tape.events.append(index)

    def __del__(self) -> None:
        self.events.append(~self.index)

    @property
    def purpose(self) -> Purpose:
        """What these bytes are for."""
        return self.purposes[self.index]

    @purpose.setter
    def purpose(self, purpose: Purpose) -> None:
        self.purposes[self.index] = purpose
