"""How memory goes up and down along a job's steps, in few enough points to draw.

    columns   each stands for some events of one phase and shows the highest of them: what is alive
              then by purpose, the largest groups of tensors, allocated and reserved bytes
    spans     which columns are which phase of which step
    groups    tensors that are alike, as `planning.tensors` names them

Each column is one real moment, so its parts add up, and no peak is lost between two columns.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate, pairwise
from typing import Any

from vrambudget.budget import BLOCK_ROUNDING
from vrambudget.config.job import Job
from vrambudget.planning.tensors import any_layer, describe
from vrambudget.tape.allocators import allocator_for
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.marks import Mark, Phase
from vrambudget.tape.steady import run
from vrambudget.tape.trace import levels, trace

PARTS: tuple[str, ...] = (*map(str, Purpose), BLOCK_ROUNDING)
_COLUMNS = 720
_LEAST = 2  # columns of a phase, however short
_LARGEST = 8  # groups that a column names


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors that a reader need not tell apart."""

    purpose: str
    description: str
    module: str  # "*" for the number of a layer
    size_bytes: int  # of one


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment: the event with the most allocated bytes among those that it stands for."""

    event: int
    operation: str
    parts: tuple[int, ...]  # bytes, in the order of PARTS
    allocated_bytes: int
    reserved_bytes: int
    largest: tuple[tuple[int, int], ...]  # group and how many of it are alive


@dataclass(frozen=True, slots=True)
class Span:
    """Columns `start` to `stop` are this phase."""

    step: int
    phase: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """A tape, ready to be drawn; `peak` is the number of the highest column."""

    columns: tuple[Moment, ...]
    spans: tuple[Span, ...]
    groups: tuple[TensorGroup, ...]
    peak: int
    out_of_memory: int | None = None  # the column in which the card is full

    def span_of(self, column: int) -> Span:
        """Return the phase that a column is in."""
        return self.spans[bisect_right([span.start for span in self.spans], column) - 1]


def memory_curve(tape: Tape, job: Job, room_bytes: int | None = None) -> MemoryCurve:
    """Return the curve on a card without end, and where one with `room_bytes` would be full."""
    allocated = _allocated(tape)
    phases = list(_phases(tape))
    bins = [_bins(start, stop, len(allocated)) for _, start, stop in phases]
    moments = [max(b, key=allocated.__getitem__) for part in bins for b in part]
    spans, at = [], 0
    for (mark, _, _), part in zip(phases, bins, strict=True):
        spans.append(Span(mark.step, mark.phase, at, at + len(part)))
        at += len(part)
    groups, columns = _columns(tape, job, moments)
    # As `max_memory_allocated` counts: from where the loop resets it, once the model is built.
    since = max((mark.position for mark in tape.marks if mark.resets_allocator), default=0)
    counted = (i for i, column in enumerate(columns) if column.event >= since)
    peak = max(counted, key=lambda i: columns[i].allocated_bytes)
    full = trace(tape, room_bytes).out_of_memory if room_bytes is not None else None
    starts = [b[0] for part in bins for b in part]
    in_column = None if full is None else bisect_right(starts, full.event) - 1
    return MemoryCurve(tuple(columns), tuple(spans), groups, peak, in_column)


def _phases(tape: Tape) -> Iterator[tuple[Mark, int, int]]:
    """Yield each phase that has events, with where it begins and ends."""
    marks = [Mark(0, 0, Phase.BUILD), *tape.marks]
    ends = [*(mark.position for mark in tape.marks), len(tape.events)]
    for mark, stop in zip(marks, ends, strict=True):
        if stop > mark.position:
            yield mark, mark.position, stop


def _bins(start: int, stop: int, total: int) -> list[range]:
    """Return the events of a phase in as many parts as its share of all columns."""
    count = min(max(_COLUMNS * (stop - start) // total, _LEAST), stop - start)
    edges = [start + (stop - start) * i // count for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def _allocated(tape: Tape) -> list[int]:
    """Return allocated bytes after each event."""
    if not tape.is_plain:
        return [allocated for allocated, _ in levels(tape, range(len(tape.events)))]
    allocator = allocator_for(tape)
    for _ in run(tape, allocator):
        pass
    # A block counts for as much from its allocation to its end.
    blocks = map(allocator.block_bytes, range(len(tape.sizes)))
    sizes = list(blocks)
    return list(accumulate(change * sizes[i] for i, change in tape.changes()))


def _columns(
    tape: Tape, job: Job, moments: Sequence[int]
) -> tuple[tuple[TensorGroup, ...], list[Moment]]:
    """Return the groups, and what is alive at each of the moments, which rise."""
    groups = _Groups(tape, job)
    parts = dict.fromkeys(PARTS, 0)
    alive: dict[int, int] = {}
    columns, done = [], 0
    for event, after in zip(moments, levels(tape, moments), strict=True):
        for storage, change in tape.changes(done, event + 1):
            group = groups.of(storage)
            parts[tape.purposes[storage]] += change * tape.sizes[storage]
            alive[group] = alive.get(group, 0) + change
        done = event + 1
        columns.append(_column(tape, event, after, parts, groups.largest(alive)))
    return tuple(groups.groups), columns


class _Groups:
    """Tensors that are alike, numbered as they come."""

    def __init__(self, tape: Tape, job: Job) -> None:
        self.tape, self.job = tape, job
        self.groups: list[TensorGroup] = []
        self._numbers: dict[TensorGroup, int] = {}
        self._known: dict[tuple[Any, ...], int] = {}  # what is alike need not be named twice
        self._modules = list(map(any_layer, tape.paths))

    def of(self, storage: int) -> int:
        """Return the number of a storage's group."""
        tape = self.tape
        columns = tape.purposes, tape.operations, tape.contents, tape.sizes
        module = self._modules[tape.modules[storage]]
        kind = (*(column[storage] for column in columns), module)
        if kind not in self._known:
            self._known[kind] = self._number(storage, module)
        return self._known[kind]

    def largest(self, alive: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
        """Return the groups that hold most, with how many of each are alive."""
        sizes = {group: n * self.groups[group].size_bytes for group, n in alive.items() if n}
        most = nlargest(_LARGEST, sizes, key=lambda group: (sizes[group], -group))
        return tuple((group, alive[group]) for group in most)

    def _number(self, storage: int, module: str) -> int:
        tape, name = self.tape, describe(self.tape, storage, self.job)
        group = TensorGroup(str(tape.purposes[storage]), name, module, tape.sizes[storage])
        if group not in self._numbers:
            self._numbers[group] = len(self.groups)
            self.groups.append(group)
        return self._numbers[group]


def _column(
    tape: Tape,
    event: int,
    after: tuple[int, int],
    parts: Mapping[str, int],
    largest: tuple[tuple[int, int], ...],
) -> Moment:
    allocated, reserved = after
    return Moment(
        event=event,
        operation=tape.operations[tape.event(event).storage],
        parts=tuple({**parts, BLOCK_ROUNDING: allocated - sum(parts.values())}.values()),
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        largest=largest,
    )
