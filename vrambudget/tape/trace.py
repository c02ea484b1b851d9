"""A tape, replayed event by event: where every block lies, when segments come and go. For pictures.

    allocate    segment_alloc where the driver had to be asked, then alloc
    free        free
    empty cache segment_free, one for each segment that was wholly free
    card full   segment_free, and oom if that was not enough: the trace ends there

It is the same replay as `vrambudget.tape.replay`'s, run an event at a time, which takes several
times as long: peaks alone do not need it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vrambudget.tape.allocator import CachingAllocator, OutOfDeviceMemoryError
from vrambudget.tape.events import Tape
from vrambudget.tape.expandable import allocator_for

Kind = Literal["alloc", "free", "segment_alloc", "segment_free", "oom"]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that the allocator did while event number `event` of the tape ran.

    `size_bytes` is what was asked for; of a segment, its size. Addresses begin at 0.
    """

    kind: Kind
    event: int
    address: int
    size_bytes: int
    allocated_bytes: int  # after it, as are the next
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What the allocator did, and the segments and blocks (size by address) that are left."""

    actions: tuple[Action, ...]
    segments: dict[int, int]
    blocks: dict[int, tuple[int, int]]  # storage and size of the block, by address

    @property
    def out_of_memory(self) -> Action | None:
        """The request that failed, if one did."""
        last = self.actions[-1] if self.actions else None
        return last if last and last.kind == "oom" else None


def trace(tape: Tape, room_bytes: int | None = None) -> Trace:
    """Return what the allocator does with `room_bytes` for segments; None: without end."""
    allocator = allocator_for(tape.expandable_on_bytes, room_bytes)
    alive: set[int] = set()
    actions = tuple(_actions(tape, allocator, alive))
    blocks = {allocator.address_of(i): (i, allocator.block_bytes(i)) for i in alive}
    return Trace(actions, allocator.segments(), blocks)


def _actions(tape: Tape, allocator: CachingAllocator, alive: set[int]) -> Iterator[Action]:
    resets = {mark.position for mark in tape.marks if mark.resets_allocator}
    for position, event in enumerate(tape.read()):
        if position in resets:
            allocator.empty_cache()
        storage, size_bytes = event.storage, tape.sizes[event.storage]
        try:
            allocator.run(tape.events, tape.sizes, position, position + 1)
        except OutOfDeviceMemoryError:
            yield from _segment_actions(allocator, position)
            yield _action("oom", position, 0, size_bytes, allocator)
            return
        yield from _segment_actions(allocator, position)
        address = allocator.address_of(storage)
        if event.change > 0:
            yield _action("alloc", position, address, size_bytes, allocator)
            alive.add(storage)
        elif event.change < 0:
            yield _action("free", position, address, size_bytes, allocator)
            alive.discard(storage)


def _segment_actions(allocator: CachingAllocator, event: int) -> Iterator[Action]:
    for address, change in allocator.segment_changes:
        kind: Kind = "segment_alloc" if change > 0 else "segment_free"
        yield _action(kind, event, address, abs(change), allocator)
    allocator.segment_changes.clear()


def _action(
    kind: Kind, event: int, address: int, size_bytes: int, allocator: CachingAllocator
) -> Action:
    allocated, reserved = allocator.allocated_bytes, allocator.reserved_bytes
    return Action(kind, event, address, size_bytes, allocated, reserved)
