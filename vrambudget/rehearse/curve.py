"""How a rehearsed script's memory goes up and down along its steps, ready to be drawn.

The history is read twice: first for what each block turns out to be, for the level after each
event and for where phases begin, then for what is alive at the moments that are drawn. Those are of
the first steps, of the peak's and of the one in which memory ran out; others look like them.

Levels are what tensors asked for: how much larger their blocks are, the history does not say.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise
from typing import Any

from vrambudget.rehearse.record import CATEGORIES, Category
from vrambudget.rehearse.timeline import EventReplay, born_as
from vrambudget.report.memory_curve import CurvePoint, MemoryCurve, PhaseSpan, TensorGroup
from vrambudget.tape.events import Purpose

OTHER = "other"
CALLED: dict[Category, str] = {
    "parameter": Purpose.WEIGHTS,
    "gradient": Purpose.GRADIENTS,
    "optimizer_state": Purpose.OPTIMIZER_STATES,
    "activation": Purpose.ACTIVATIONS,
    "temporary": Purpose.TEMPORARIES,
    "other": OTHER,
}
"""What an estimate's report calls the categories."""

_PARTS = tuple(CALLED[category] for category in CATEGORIES)
_COLUMNS = 720
_LEAST = 2  # columns of a phase, however short
_LARGEST = 8  # groups that a column names
_FIRST_STEPS = 3


def curve_of(record: Mapping[str, Any]) -> MemoryCurve | None:
    """Return the curve of a process's record, or None of one without events."""
    seen = _Seen(record)
    seen.run()
    phases = list(_drawn(seen.spans()))
    if not phases:
        return None
    bins = [part for phase, count in _counts(phases) for part in _bins(phase, count)]
    moments = [max(part, key=seen.live_after.__getitem__) for part in bins]
    columns = _Columns(record, seen)
    for event in moments:
        columns.at(event)
    spans, at = [], 0
    for phase, count in _counts(phases):
        spans.append(PhaseSpan(phase.step - 1, phase.name, at, at := at + count))
    peak = max(range(len(moments)), key=lambda i: columns.found[i].allocated_bytes)
    full = None if seen.ran_out < 0 else bisect_right([b.start for b in bins], seen.ran_out) - 1
    groups = tuple(columns.groups)
    return MemoryCurve(tuple(columns.found), tuple(spans), groups, peak, full, _PARTS)


@dataclass(frozen=True, slots=True)
class _Phase:
    """Events `start` to `stop` of the history."""

    step: int
    name: str
    start: int
    stop: int
    is_named: bool  # the peak is here, or memory ran out


def _drawn(phases: Sequence[_Phase]) -> Iterator[_Phase]:
    """Yield the phases of the steps that are drawn."""
    steps = sorted({phase.step for phase in phases})
    shown = {*steps[:_FIRST_STEPS], *(p.step for p in phases if p.is_named)}
    yield from (phase for phase in phases if phase.step in shown)


def _counts(phases: Sequence[_Phase]) -> Iterator[tuple[_Phase, int]]:
    """Yield each phase with its columns: its share of all events."""
    total = sum(phase.stop - phase.start for phase in phases)
    for phase in phases:
        events = phase.stop - phase.start
        yield phase, min(max(_COLUMNS * events // total, _LEAST), events)


def _bins(phase: _Phase, count: int) -> Iterator[range]:
    edges = [phase.start + (phase.stop - phase.start) * i // count for i in range(count + 1)]
    yield from (range(a, b) for a, b in pairwise(edges))


class _Seen(EventReplay):
    """The first pass: what blocks are, levels, and phases."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        super().__init__(record)
        self.number = 0  # of the last allocation
        self.numbers: dict[int, int] = {}  # by address, of those that are alive
        self.kinds: dict[int, str] = {}  # of allocations that somebody named
        self.born_in: list[str] = []  # the phase of each allocation
        self.live_after: list[int] = []
        self.phase_after: list[tuple[int, str]] = []
        self.ran_out = max((i for i, a in enumerate(self.actions) if a == "oom"), default=-1)

    def after(self, i: int) -> None:
        """Note the level after an event."""
        address = self.addresses[i]
        if self.actions[i] == "alloc":
            self.numbers[address] = len(self.born_in)
            self.born_in.append(self.phase)
        elif self.actions[i] == "free_requested":
            self.numbers.pop(address, None)
        self.live_after.append(self.live)
        self.phase_after.append((self.step, self.phase))

    def name(self, owners: Mapping[str, Sequence[int]]) -> None:
        """Let blocks be what a mark says of them, from their birth on."""
        super().name(owners)
        for category, addresses in owners.items():
            for address in addresses:
                if address in self.numbers:
                    self.kinds.setdefault(self.numbers[address], category)

    def run(self, until: int | None = None) -> None:
        """Replay all events."""
        super().run(until)
        self.name({"parameter": self.at_end})

    def kind_of(self, number: int) -> str:
        """Return what an allocation was for."""
        phase = self.born_in[number]
        before = "forward" if phase == "build" and self.phase != "build" else phase
        return CALLED[self.kinds.get(number) or born_as(before)]  # type: ignore[index]

    def spans(self) -> list[_Phase]:
        """Return the phases in order; the model's build is a part of the first forward."""
        after = [(step, self._first(name)) for step, name in self.phase_after]
        starts = [i for i, phase in enumerate(after) if not i or phase != after[i - 1]]
        named = {self.highest_at, self.ran_out}
        return [
            _Phase(*after[a], a, b, is_named=any(a <= event < b for event in named))
            for a, b in pairwise([*starts, len(after)])
        ]

    def _first(self, name: str) -> str:
        return "forward" if name == "build" and self.phase != "build" else name


class _Columns:
    """The second pass: what is alive at moments, which rise."""

    def __init__(self, record: Mapping[str, Any], seen: _Seen) -> None:
        self.seen, self.names = seen, record.get("names", {})
        self.modules = record["history"].get("modules") or [""] * len(seen.lines)
        self.groups: dict[TensorGroup, int] = {}
        self.sizes: list[int] = []
        self.of_address: dict[int, TensorGroup] = {}
        self.parts: Counter[str] = Counter()
        self.alive: Counter[TensorGroup] = Counter()
        self.reserved = self.number = self.done = 0
        self.line = ""
        self.found: list[CurvePoint] = []

    def at(self, event: int) -> None:
        """Add the moment after an event."""
        for i in range(self.done, event + 1):
            self._take(i)
        self.done = event + 1
        live = self.alive
        most = nlargest(
            _LARGEST, (g for g in live if live[g]), key=lambda g: live[g] * g.size_bytes
        )
        self.found.append(
            CurvePoint(
                event,
                self.line,
                tuple(self.parts[part] for part in _PARTS),
                sum(self.parts.values()),
                self.reserved,
                tuple((self.groups.setdefault(g, len(self.groups)), live[g]) for g in most),
            )
        )

    def _take(self, i: int) -> None:
        action, size, address = self.seen.actions[i], self.seen.sizes[i], self.seen.addresses[i]
        if action == "alloc":
            group = self._group(i, address, size)
            self.of_address[address] = group
            self._count(group, 1)
        elif action == "free_requested":
            gone = self.of_address.pop(address, None)
            if gone is not None:  # else it was born before the history begins
                self._count(gone, -1)
        elif action in ("segment_alloc", "segment_map"):
            self.reserved += size
        elif action in ("segment_free", "segment_unmap"):
            self.reserved -= size

    def _group(self, i: int, address: int, size: int) -> TensorGroup:
        stack = self.seen.stack_numbers[i]
        self.line = self.seen.lines[stack]
        kind = self.seen.kind_of(self.number)
        self.number += 1
        module = self.modules[stack]
        if kind == Purpose.WEIGHTS:
            module = self.names.get(str(address), module)
        return TensorGroup(kind, self.line, module, size)

    def _count(self, group: TensorGroup, change: int) -> None:
        self.parts[group.purpose] += change * group.size_bytes
        self.alive[group] += change
