"""A tape, replayed event by event: where every block lies, when segments come and go. For pictures.

    allocate    segment_alloc where the driver had to be asked, then alloc
    free        free; free_requested where other streams use the block: free_completed follows
                before the next allocation
    empty cache segment_free, one for each segment that was wholly free
    GPU full    segment_free, and oom if that was not enough: the trace ends there

It is the same replay as `vrambudget.tape.replay`'s, run an event at a time, which takes several
times as long: peaks alone do not need it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.allocators import allocator_for
from vrambudget.tape.events import Tape
from vrambudget.tape.full_gpu import OutOfDeviceMemoryError
from vrambudget.tape.quick_steps import run_steps
from vrambudget.tape.steps import RepeatedStep, Steps

ActionKind = Literal[
    "alloc", "free", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom"
]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that the allocator did while event number `event` of the tape ran.

    `size_bytes` is what was asked for; of a segment, its size. Addresses begin at 0.
    """

    kind: ActionKind
    event: int
    address: int
    size_bytes: int
    allocated_bytes: int  # after it, as are the next
    reserved_bytes: int
    stream: int  # of the block, or of the segment
    storage: int  # of the block; of a segment the one for which the allocator was asked


@dataclass(frozen=True, slots=True)
class Trace:
    """What the allocator did, and the segments and blocks (size by address) that are left."""

    actions: tuple[Action, ...]
    segments: dict[int, int]
    streams: dict[int, int]  # of the segments, by address
    blocks: dict[int, tuple[int, int]]  # storage and size of the block, by address
    waiting: frozenset[int]  # of these storages, those that are freed but used by other streams

    @property
    def out_of_memory(self) -> Action | None:
        """The request that failed, if one did."""
        last = self.actions[-1] if self.actions else None
        return last if last and last.kind == "oom" else None


def trace(tape: Tape, available_bytes: int | None = None) -> Trace:
    """Return what the allocator does with `available_bytes` for segments; None: no limit."""
    tracing = _Tracing(tape, allocator_for(tape, available_bytes))
    actions, allocator = tuple(tracing.actions()), tracing.allocator
    blocks = {allocator.address_of(i): (i, allocator.block_bytes(i)) for i in tracing.alive}
    segments = allocator.segments()
    streams = {address: allocator.stream_at(address) for address in segments}
    return Trace(actions, segments, streams, blocks, frozenset(tracing.waiting))


StepWatch = Callable[[RepeatedStep, list[int], CachingAllocator], None]
"""Receives a step that is not on the tape, the sizes of what it carries on, and the allocator."""


def levels(
    tape: Tape, positions: Iterable[int], watch: StepWatch | None = None
) -> Iterator[tuple[int, int]]:
    """Yield allocated and reserved bytes after the events at these positions, which rise.

    None of them may be in the summary of steps that are not on the tape: `watch` receives those.
    """
    allocator, here = allocator_for(tape), 0
    watched = None if watch is None else partial(_pass_on, watch, allocator)
    marks = deque(mark for mark in tape.marks if mark.gives_back or mark.steps is not None)
    for position in positions:
        while marks and marks[0].position <= position:
            mark = marks.popleft()
            allocator.run(tape.events, tape.sizes, here, here := mark.position)
            if mark.gives_back:
                allocator.empty_cache()
            if mark.steps is not None:
                run_steps(mark.steps, allocator, tape.sizes, here, watched)
                here = mark.steps.end
        allocator.run(tape.events, tape.sizes, here, here := position + 1)
        yield allocator.allocated_bytes, allocator.reserved_bytes


def _pass_on(
    watch: StepWatch, allocator: CachingAllocator, step: RepeatedStep, carried: list[int]
) -> None:
    watch(step, carried, allocator)


@dataclass(slots=True)
class _Tracing:
    tape: Tape
    allocator: CachingAllocator
    alive: set[int] = field(default_factory=set)  # storages that have a block
    waiting: dict[int, int] = field(default_factory=dict)  # storages: addresses of their blocks
    is_full: bool = False  # in a step that is not on the tape

    def actions(self) -> Iterator[Action]:
        """Yield all that the allocator does."""
        tape, allocator = self.tape, self.allocator
        resets = {mark.position for mark in tape.marks if mark.gives_back}
        summaries = {mark.position: mark.steps for mark in tape.marks if mark.steps is not None}
        summary_ends = 0
        for position, event in enumerate(tape.read()):
            if position in resets:
                allocator.empty_cache()
            storage = event.storage
            if (steps := summaries.get(position)) is not None:
                yield from self._summary(position, steps)
                summary_ends = steps.end
            if self.is_full:
                return
            if position < summary_ends:
                continue
            is_full = False
            try:
                allocator.run(tape.events, tape.sizes, position, position + 1)
            except OutOfDeviceMemoryError:
                is_full = True
            yield from self._completed(position)
            yield from self._segments(position, storage)
            if is_full:
                yield self._action("oom", position, storage, 0)
                return
            if event.change > 0:
                self.alive.add(storage)
                yield self._action("alloc", position, storage, allocator.address_of(storage))
            elif event.change < 0 and storage in self.alive:
                yield self._freed(position, storage)

    def _summary(self, position: int, steps: Steps) -> Iterator[Action]:
        """Yield what steps that are not on the tape leave: the old is gone before the new comes.

        What keeps its size is one storage, that lies elsewhere by then. What is kept to be returned
        is one storage on the tape, of many blocks: it is left out.
        """
        allocator, changes = self.allocator, [*self.tape.changes(position, steps.end)]
        stays = {*steps.before} & {*steps.after}
        dies = {storage for storage, change in changes if change < 0} | stays
        gone = [(i, self._freed(position, i)) for i in sorted(dies & self.alive)]
        try:
            run_steps(steps, allocator, self.tape.sizes, position)
        except OutOfDeviceMemoryError:
            self.is_full = True
        yield from (action for _, action in gone)
        yield from self._segments(position, changes[0][0])
        if self.is_full:
            yield self._action("oom", position, changes[0][0], 0)
            return
        for storage in [storage for storage, change in changes if change > 0] + sorted(stays):
            if allocator.block_bytes(storage):
                self.alive.add(storage)
                yield self._action("alloc", position, storage, allocator.address_of(storage))

    def _freed(self, event: int, storage: int) -> Action:
        address = self.allocator.address_of(storage)
        if self.allocator.is_waiting(storage):
            self.waiting[storage] = address
            return self._action("free_requested", event, storage, address)
        self.alive.discard(storage)
        return self._action("free", event, storage, address)

    def _completed(self, event: int) -> Iterator[Action]:
        for storage in self.allocator.completed:
            self.alive.discard(storage)
            yield self._action("free_completed", event, storage, self.waiting.pop(storage))
        self.allocator.completed.clear()

    def _segments(self, event: int, storage: int) -> Iterator[Action]:
        for address, change in self.allocator.segment_changes:
            kind: ActionKind = "segment_alloc" if change > 0 else "segment_free"
            stream = self.allocator.stream_at(address)
            yield self._action(kind, event, storage, address, size=abs(change), stream=stream)
        self.allocator.segment_changes.clear()

    def _action(
        self,
        kind: ActionKind,
        event: int,
        storage: int,
        address: int,
        *,
        size: int | None = None,
        stream: int | None = None,
    ) -> Action:
        allocator = self.allocator
        return Action(
            kind,
            event,
            address,
            self.tape.sizes[storage] if size is None else size,
            allocator.allocated_bytes,
            allocator.reserved_bytes,
            allocator.stream_of(storage) if stream is None else stream,
            storage,
        )
