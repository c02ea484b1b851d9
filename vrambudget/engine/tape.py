"""The tape: every allocation and free of a job, in order.

    events      i: storage i is allocated, ~i: storage i is freed
    sizes       bytes that storage i asked for
    purposes    what storage i is for (one of PURPOSES)
    operations  the operation that made storage i
    marks       where in `events` a phase begins, and where the loop does something that only
                the allocator sees (empty_cache, reset_peak_memory_stats)

Everything the program shows is a function of a tape. It knows bytes *requested*; what the caching
allocator makes of them is `vrambudget.allocator`'s business.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


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


@dataclass(slots=True)
class Tape:
    """A recording. `Any` in `sizes`: NumPy arrays of sizes may stand in for one size."""

    events: list[int] = field(default_factory=list)
    sizes: list[Any] = field(default_factory=list)
    purposes: list[Purpose] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def close(self) -> None:
        """End the recording: what dies from now on is no event of it."""
        self.events = list(self.events)

    def mark(self, step: int, phase: Phase, *, resets_allocator: bool = False) -> None:
        """Note that `phase` of `step` begins here."""
        self.marks.append(Mark(len(self.events), step, phase, resets_allocator))


class Storage:
    """Bytes on the device, from this object's birth to its last reference's death."""

    __slots__ = ("events", "index", "purposes")

    def __init__(self, tape: Tape, nbytes: Any, purpose: Purpose, operation: str) -> None:
        self.events = tape.events
        self.purposes = tape.purposes
        self.index = index = len(tape.sizes)
        tape.sizes.append(nbytes)
        tape.purposes.append(purpose)
        tape.operations.append(operation)
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
