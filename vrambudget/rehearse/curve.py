"""How a rehearsed script's memory goes up and down along its steps, ready to be drawn.

Drawn are the first steps, that of the peak and the one in which memory ran out; others look like
them.

Levels are what tensors asked for: how much larger their blocks are, the history does not say.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise
from typing import Any

from vrambudget.rehearse.record import CATEGORIES, Category
from vrambudget.rehearse.timeline import History, LiveBlock
from vrambudget.report.memory_curve import (
    LARGEST,
    CurvePoint,
    MemoryCurve,
    PhaseSpan,
    TensorGroup,
    bins,
    columns_of,
)
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
_FIRST_STEPS = 3
_RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def curve_of(record: Mapping[str, Any]) -> MemoryCurve | None:
    """Return the curve of a process's record, or None of one without events."""
    history = History(record)
    ran_out = max((i for i, a in enumerate(history.actions) if a == "oom"), default=-1)
    phases = list(_shown(history, {history.highest_at, ran_out}))
    if not phases:
        return None
    total = sum(phase.stop - phase.start for phase in phases)
    columns, spans, starts = _CurveColumns(record, history), list[PhaseSpan](), list[int]()
    for phase in phases:
        events = phase.stop - phase.start
        parts = bins(phase.start, phase.stop, columns_of(events, total, events))
        for part in parts:
            columns.at(max(part, key=history.levels.__getitem__))
        at = len(starts)
        starts += [part.start for part in parts]
        spans.append(PhaseSpan(phase.step - 1, phase.name, at, len(starts)))
    peak = max(range(len(starts)), key=lambda i: columns.found[i].allocated_bytes)
    full = None if ran_out < 0 else bisect_right(starts, ran_out) - 1
    groups = tuple(columns.groups)
    return MemoryCurve(tuple(columns.found), tuple(spans), groups, peak, full, _PARTS)


@dataclass(frozen=True, slots=True)
class _Phase:
    """Events `start` to `stop` of the history."""

    step: int
    name: str
    start: int
    stop: int


def _shown(history: History, named: set[int]) -> Iterator[_Phase]:
    """Yield the phases of the steps that are drawn; events that are `named` are among them."""
    places = history.places
    starts = [i for i, place in enumerate(places) if not i or place != places[i - 1]]
    steps = sorted({step for step, _ in places})
    shown = {*steps[:_FIRST_STEPS], *(places[event][0] for event in named if event >= 0)}
    for start, stop in pairwise([*starts, len(places)]):
        if places[start][0] in shown:
            yield _Phase(*places[start], start, stop)


class _CurveColumns:
    """What is alive at moments, which rise."""

    def __init__(self, record: Mapping[str, Any], history: History) -> None:
        self.history, self.names = history, record.get("names", {})
        self.modules = record["history"].get("modules") or [""] * len(history.lines)
        self.groups: dict[TensorGroup, int] = {}
        self.parts: Counter[str] = Counter()
        self.alive: Counter[TensorGroup] = Counter()
        self.reserved = self.done = 0
        self.line = ""
        self.found: list[CurvePoint] = []

    def at(self, event: int) -> None:
        """Add the moment after an event."""
        for i in range(self.done, event + 1):
            self._take(i)
        self.done = event + 1
        live = self.alive
        most = nlargest(LARGEST, (g for g in live if live[g]), key=lambda g: live[g] * g.size_bytes)
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
        block = self.history.blocks[i]
        self.reserved += _RESERVES.get(self.history.actions[i], 0) * self.history.sizes[i]
        if block is None:
            return
        change = 1 if block.born == i else -1
        group = self._group(block)
        self.parts[group.purpose] += change * group.size_bytes
        self.alive[group] += change
        if change > 0:
            self.line = group.description

    def _group(self, block: LiveBlock) -> TensorGroup:
        kind = CALLED[block.category]
        module = self.modules[self.history.stack_numbers[block.born]]
        if kind == Purpose.WEIGHTS:
            module = self.names.get(str(self.history.addresses[block.born]), module)
        return TensorGroup(kind, self.history.line(block.born), module, block.size)
