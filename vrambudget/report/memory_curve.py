"""How memory goes up and down along a job's steps, in few enough points to draw.

    columns   each stands for some events of one phase and shows the highest of them: what is alive
              then by purpose, the largest groups of tensors, allocated and reserved bytes
    spans     which columns are which phase of which step
    groups    tensors that are alike, as `planning.tensors` names them

Each column is one real moment, so its parts add up, and no peak is lost between two columns.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import pairwise

from vrambudget.budget import BLOCK_ROUNDING
from vrambudget.config.job import Job
from vrambudget.planning.tensors import any_layer, describe
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.marks import Mark, Phase
from vrambudget.tape.trace import Action, trace

PARTS: tuple[str, ...] = (*map(str, Purpose), BLOCK_ROUNDING)
_COLUMNS = 720
_OF_THE_TAPE = {"alloc", "free", "free_requested"}
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
    after = _after_each_event(tape)
    phases = list(_phases(tape))
    bins = [_bins(start, stop, len(after)) for _, start, stop in phases]
    moments = [max(b, key=lambda e: after[e].allocated_bytes) for part in bins for b in part]
    spans, at = [], 0
    for (mark, _, _), part in zip(phases, bins, strict=True):
        spans.append(Span(mark.step, mark.phase, at, at + len(part)))
        at += len(part)
    groups, columns = _columns(tape, job, moments, after)
    peak = max(range(len(columns)), key=lambda i: columns[i].allocated_bytes)
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


def _after_each_event(tape: Tape) -> list[Action]:
    """Return the last action at each event; some events move nothing, as with record_stream."""
    last = {a.event: a for a in trace(tape).actions if a.kind in _OF_THE_TAPE}
    after = list[Action]()
    for event in range(len(tape.events)):
        after.append(last.get(event) or replace(after[-1], event=event))
    return after


def _columns(
    tape: Tape, job: Job, moments: Sequence[int], after: Sequence[Action]
) -> tuple[tuple[TensorGroup, ...], list[Moment]]:
    """Return the groups, and what is alive at each of the moments, which rise."""
    numbers: dict[TensorGroup, int] = {}
    group_of: list[int] = []
    parts = dict.fromkeys(PARTS, 0)
    alive: dict[int, int] = {}
    columns, done = [], 0
    for event in moments:
        for each in tape.read(done, event + 1):
            storage, change = each.storage, each.change
            group_of += (
                numbers.setdefault(_group(tape, i, job), len(numbers))
                for i in range(len(group_of), storage + 1)
            )
            group = group_of[storage]
            parts[tape.purposes[storage]] += change * tape.sizes[storage]
            alive[group] = alive.get(group, 0) + change
        done = event + 1
        columns.append(_column(tape, after[event], parts, alive, tuple(numbers)))
    return tuple(numbers), columns


def _group(tape: Tape, storage: int, job: Job) -> TensorGroup:
    name, module = describe(tape, storage, job), any_layer(tape.path_of(storage))
    return TensorGroup(str(tape.purposes[storage]), name, module, tape.sizes[storage])


def _column(
    tape: Tape,
    action: Action,
    parts: Mapping[str, int],
    alive: Mapping[int, int],
    groups: Sequence[TensorGroup],
) -> Moment:
    rounding = action.allocated_bytes - sum(parts.values())
    largest = nlargest(_LARGEST, alive, key=lambda g: (alive[g] * groups[g].size_bytes, -g))
    return Moment(
        event=action.event,
        operation=tape.operations[tape.event(action.event).storage],
        parts=tuple({**parts, BLOCK_ROUNDING: rounding}.values()),
        allocated_bytes=action.allocated_bytes,
        reserved_bytes=action.reserved_bytes,
        largest=tuple((g, alive[g]) for g in largest if alive[g]),
    )
