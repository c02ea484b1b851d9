"""How memory goes up and down along a job's steps, in few enough points to draw.

    columns   each stands for some events of one phase and shows the highest of them: what is alive
              then by purpose, the largest groups of tensors, allocated and reserved bytes
    spans     which columns are which phase of which step
    groups    identical tensors, as `planning.tensors` names them

Each column is one real moment, so its parts add up, and no peak is lost between two columns. Steps
that are not on the tape have columns, too: `report.step_columns`.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from typing import Any

from vrambudget.budget import BLOCK_ROUNDING
from vrambudget.config.job import Job
from vrambudget.planning.tensors import any_layer, describe
from vrambudget.report.step_columns import Sample, Samples, events_of, kept_for, shown
from vrambudget.tape.allocators import allocator_for
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.marks import Mark, Phase
from vrambudget.tape.replay import full_on
from vrambudget.tape.steady import run
from vrambudget.tape.steps import Steps
from vrambudget.tape.trace import levels

PARTS: tuple[str, ...] = (*map(str, Purpose), BLOCK_ROUNDING)
_COLUMNS = 720
_LEAST = 2  # columns of a phase, however short
LARGEST = 8  # groups that a column names


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors that a reader need not distinguish."""

    purpose: str
    description: str
    module: str  # "*" for the number of a layer
    size_bytes: int  # of one


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One moment: the event with the most allocated bytes among those that it stands for."""

    event: int
    operation: str
    parts: tuple[int, ...]  # bytes, in the order of the curve's parts
    allocated_bytes: int
    reserved_bytes: int
    largest: tuple[tuple[int, int], ...]  # group and how many of it are alive


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """Columns `start` to `stop` are this phase."""

    step: int
    phase: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """A tape, ready to be drawn; `peak` is the number of the highest column."""

    columns: tuple[CurvePoint, ...]
    spans: tuple[PhaseSpan, ...]
    groups: tuple[TensorGroup, ...]
    peak: int
    out_of_memory: int | None = None  # the column in which the GPU is full
    parts: tuple[str, ...] = PARTS  # of each column

    def span_of(self, column: int) -> PhaseSpan:
        """Return the phase that a column is in."""
        return self.spans[bisect_right([span.start for span in self.spans], column) - 1]


def memory_curve(tape: Tape, job: Job, available_bytes: int | None = None) -> MemoryCurve:
    """Return the curve on a GPU without end, and where one with `available_bytes` would be full."""
    phases = list(_phases(tape))
    counts = list(_counts(phases))
    allocated = _allocated(tape)
    columns, spans, starts, at = _Columns(tape, job), list[PhaseSpan](), list[int](), 0
    events = [
        [] if mark.steps else bins(start, stop, count)
        for (mark, start, stop), count in zip(phases, counts, strict=True)
    ]
    moments = [max(b, key=allocated.__getitem__) for part in events for b in part]
    numbers = [
        shown(mark.steps, n) if mark.steps else []
        for (mark, _, _), n in zip(phases, counts, strict=True)
    ]
    samples = Samples({number for part in numbers for number in part})
    after = iter([*zip(moments, levels(tape, moments, samples), strict=True)])
    for (mark, start, _), part, steps in zip(phases, events, numbers, strict=True):
        for event, level in islice(after, len(part)):
            columns.at(event, level)
        if mark.steps is not None:
            columns.between(mark, mark.steps, [samples.found[number] for number in steps])
        starts += [b[0] for b in part] or [start] * len(steps)
        spans.append(PhaseSpan(mark.step, mark.phase, at, at := len(columns.found)))
    # As `max_memory_allocated` counts: from where the loop resets it, once the model is built.
    since = tape.built()
    eligible = (i for i, column in enumerate(columns.found) if column.event >= since)
    peak = max(eligible, key=lambda i: columns.found[i].allocated_bytes)
    full = full_on(tape, available_bytes) if available_bytes is not None else None
    in_column = None if full is None else bisect_right(starts, full.event) - 1
    groups = tuple(columns.groups.groups)
    return MemoryCurve(tuple(columns.found), tuple(spans), groups, peak, in_column)


def _phases(tape: Tape) -> Iterator[tuple[Mark, int, int]]:
    """Yield each phase that has events, with where it begins and ends."""
    marks = [Mark(0, 0, Phase.BUILD), *tape.marks]
    ends = [*(mark.position for mark in tape.marks), len(tape.events)]
    for mark, stop in zip(marks, ends, strict=True):
        if stop > mark.position:
            yield mark, mark.position, stop


def _counts(phases: Sequence[tuple[Mark, int, int]]) -> Iterator[int]:
    """Yield each phase's columns: its share of all events.

    Steps that are not on the tape are together as wide as all else, at most.
    """
    events = [stop - start for mark, start, stop in phases if not mark.steps]
    unseen = sum(events_of(mark.steps) for mark, _, _ in phases if mark.steps)
    part = min(1.0, sum(events) / max(1, unseen))
    total = sum(events) + part * unseen
    for mark, start, stop in phases:
        own = part * events_of(mark.steps) if mark.steps else stop - start
        most = events_of(mark.steps) if mark.steps else stop - start
        yield columns_of(own, total, most)


def columns_of(own: float, total: float, most: int) -> int:
    """Return how many columns a phase has that is `own` of `total`."""
    return min(max(int(_COLUMNS * own / total), _LEAST), most)


def bins(start: int, stop: int, count: int) -> list[range]:
    """Return the events of a phase in so many parts."""
    edges = [start + (stop - start) * i // count for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def _allocated(tape: Tape) -> list[int]:
    """Return allocated bytes after each event."""
    if not tape.is_fast:
        return [allocated for allocated, _ in levels(tape, range(len(tape.events)))]
    allocator = allocator_for(tape)
    for _ in run(tape, allocator):
        pass
    # A block counts for as much until its end, which is changes[~i].
    sizes = list(map(allocator.block_bytes, range(len(tape.sizes))))
    changes = [*sizes, *(-size for size in reversed(sizes))]
    return list(accumulate(map(changes.__getitem__, tape.events)))


class _Columns:
    """What is alive at moments of a tape, which rise."""

    def __init__(self, tape: Tape, job: Job) -> None:
        self.tape, self.groups = tape, _Groups(tape, job)
        numbers = {id(purpose): n for n, purpose in enumerate(Purpose)}  # an enum's hash is slow
        self.purposes = list(map(numbers.__getitem__, map(id, tape.purposes)))
        self.parts = [0] * len(Purpose)  # bytes, in the order of PARTS
        self.alive = [0] * len(self.groups.groups)  # of each group
        self.done = 0  # events
        self.found: list[CurvePoint] = []

    def at(self, event: int, after: tuple[int, int]) -> None:
        """Add the moment after an event, with the bytes allocated and reserved then."""
        self._go_to(event + 1)
        operation = self.tape.operations[self.tape.event(event).storage]
        self._add(event, operation, after, self.parts, self.alive)

    def between(self, mark: Mark, steps: Steps, samples: Sequence[Sample]) -> None:
        """Add moments between steps that are not on the tape."""
        self._go_to(mark.position)
        kept_for_ = [*Purpose].index(kept_for(self.tape, mark, steps))
        parts, alive = [*self.parts], [*self.alive]
        for storage in steps.before:
            parts[self.purposes[storage]] -= self.tape.sizes[storage]
            alive[self.groups.of[storage]] -= 1
        for sample in samples:
            now, living = [*parts], [*alive]
            now[kept_for_] += sample.kept_bytes
            for storage, size in zip(steps.before, sample.carried, strict=True):
                now[self.purposes[storage]] += size
                group = self.groups.sized(storage, size)
                living += [0] * (group + 1 - len(living))
                living[group] += 1
            levels_ = sample.allocated_bytes, sample.reserved_bytes
            self._add(mark.position, f"after {sample.phase}", levels_, now, living)

    def _go_to(self, position: int) -> None:
        parts, alive, sizes = self.parts, self.alive, self.tape.sizes
        purposes, groups = self.purposes, self.groups.of
        for storage, change in self.tape.changes(self.done, position):
            parts[purposes[storage]] += change * sizes[storage]
            alive[groups[storage]] += change
        self.done = position

    def _add(
        self,
        event: int,
        operation: str,
        after: tuple[int, int],
        parts: Sequence[int],
        alive: Sequence[int],
    ) -> None:
        allocated, reserved = after
        whole = *parts, allocated - sum(parts)  # the last is block rounding
        largest = self.groups.largest(alive)
        self.found.append(CurvePoint(event, operation, whole, allocated, reserved, largest))


class _Groups:
    """Identical tensors, numbered as they come."""

    def __init__(self, tape: Tape, job: Job) -> None:
        self.tape, self.job = tape, job
        self.groups: list[TensorGroup] = []
        self._sizes: list[int] = []  # of one of each group
        self._numbers: dict[TensorGroup, int] = {}
        self.of = list(self._each())  # by storage

    def _each(self) -> Iterator[int]:
        """Yield the number of each storage's group; what is identical need not be named twice."""
        tape, known = self.tape, dict[tuple[Any, ...], int]()
        modules = map(list(map(any_layer, tape.paths)).__getitem__, tape.modules)
        # Copies of a layer have its very purpose and content, whose own hashes would take long.
        columns = map(id, tape.purposes), tape.operations, map(id, tape.contents), tape.sizes
        for storage, kind in enumerate(zip(*columns, modules, strict=True)):
            if kind not in known:
                known[kind] = self._number(storage, kind[-1])
            yield known[kind]

    def sized(self, storage: int, size: int) -> int:
        """Return the number of the group of a storage that has another size by now."""
        group = self.groups[self.of[storage]]
        name, _, _ = group.description.partition(", ")
        return self._numbered(replace(group, description=name, size_bytes=size))

    def largest(self, alive: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return the groups that hold most, with how many of each are alive."""
        held = [
            (-n * size, group)
            for group, (n, size) in enumerate(zip(alive, self._sizes, strict=False))
            if n
        ]
        return tuple((group, alive[group]) for _, group in sorted(held)[:LARGEST])

    def _number(self, storage: int, module: str) -> int:
        tape, name = self.tape, describe(self.tape, storage, self.job)
        size = tape.sizes[storage]
        return self._numbered(TensorGroup(str(tape.purposes[storage]), name, module, size))

    def _numbered(self, group: TensorGroup) -> int:
        if group not in self._numbers:
            self._numbers[group] = len(self.groups)
            self.groups.append(group)
            self._sizes.append(group.size_bytes)
        return self._numbers[group]
