"""Read the allocator's history: every phase's peak, and what was alive at the highest one.

The recorder's marks (a phase begins; these addresses hold parameters) carry the numbers of
allocations and frees so far, which is their place in the history: the history may have lost its
beginning, the counts have not.

A block's category is that of a mark which names its address while it is alive. Else where it was
born decides: in backward or in the optimizer's step it is temporary, in forward an activation, and
before the first forward of a script it is other.

Not modelled: blocks that wait for another stream count as freed when their tensor died.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from vrambudget.rehearse.record import CATEGORIES, Category, HeldBlock, Moment, PhasePeak

_LARGEST = 8  # rows of the peak's table


@dataclass(slots=True)
class _Alive:
    address: int
    size: int
    phase: str
    line: str
    category: Category | None = None


@dataclass(slots=True)
class _Mark:
    phase: str
    allocations: int
    frees: int
    owners: Mapping[str, list[int]]
    done: int  # iterations before it


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the history says; `lost` where the peak was before its beginning."""

    phases: tuple[PhasePeak, ...]
    peak: Moment | None
    complete: bool


def read_timeline(record: Mapping[str, Any]) -> Timeline:
    """Return the phases and the peak of a process's record."""
    replay = EventReplay(record)
    replay.run()
    # A second pass stops at the peak: only there it matters what was alive.
    at_peak = EventReplay(record)
    at_peak.run(until=replay.highest_at)
    return Timeline(
        phases=tuple(PhasePeak(step, phase, n) for (step, phase), n in replay.phases.items()),
        peak=at_peak.moment() if replay.highest else None,
        complete=not replay.lost,
    )


class EventReplay:
    """Reads the events in order; `alive` is what the program holds."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        history = record["history"]
        self.actions: list[str] = history["action"]
        self.addresses: list[int] = history["address"]
        self.sizes: list[int] = history["bytes"]
        self.stack_numbers: list[int] = history["stack"]
        self.lines = [_line(stack) for stack in history["stacks"]]
        # Those with a colon are the runner's own, of a job's steps: the same phases once more.
        self.marks = [_Mark(*mark) for mark in record["marks"] if ":" not in mark[0]]
        self.at_end: list[int] = record.get("parameters", [])
        allocations, frees = map(int, record["counts"])
        self.allocations: int = allocations - self.actions.count(
            "alloc"
        )  # before the history begins
        self.frees: int = frees - self.actions.count("free_requested")
        self.lost = self.allocations > 0
        self.alive: dict[int, _Alive] = {}
        self.live = self.highest = 0
        self.highest_at = -1
        self.step, self.phase, self.line = 1, "build", ""
        self.phases: dict[tuple[int, str], int] = {}

    def run(self, until: int | None = None) -> None:
        """Replay all events, or those up to and with number `until`."""
        for i, action in enumerate(self.actions):
            self._take_marks()
            if action == "alloc":
                self._born(i)
            elif action == "free_requested":
                self._died(i)
            self.after(i)
            if i == until:
                break
        else:
            self._take_marks()
        if until is not None:
            self._look_ahead()

    def after(self, i: int) -> None:
        """See an event that was just replayed: for who wants to."""

    def _born(self, i: int) -> None:
        size, self.line = self.sizes[i], self.lines[self.stack_numbers[i]]
        self.allocations += 1
        self.live += size
        self.alive[self.addresses[i]] = _Alive(self.addresses[i], size, self.phase, self.line)
        if self.live > self.highest:
            self.highest, self.highest_at = self.live, i
        self._note_peak()

    def _note_peak(self) -> None:
        key = (self.step, self.phase)
        self.phases[key] = max(self.phases.get(key, 0), self.live)

    def _died(self, i: int) -> None:
        self.frees += 1
        gone = self.alive.pop(self.addresses[i], None)
        if gone is not None:  # else it was born before the history begins
            self.live -= gone.size

    def _take_marks(self) -> None:
        while self.marks and self._is_reached(self.marks[0]):
            mark = self.marks.pop(0)
            self.step = mark.done + 1
            self._first_forward()
            self.phase = mark.phase or self.phase
            self._note_peak()
            self.name(mark.owners)

    def _is_reached(self, mark: _Mark) -> bool:
        return mark.allocations <= self.allocations and mark.frees <= self.frees

    def _first_forward(self) -> None:
        """Rename what was before the first mark: the model's build and the first forward."""
        if self.phase == "build":
            self.phases = {(1, "forward"): max(self.phases.values(), default=0)}
            self.phase = "forward"
            for block in self.alive.values():
                block.phase = "forward"

    def name(self, owners: Mapping[str, Sequence[int]]) -> None:
        """Let blocks that are alive be what a mark says of them."""
        for category, addresses in owners.items():
            for address in addresses:
                if address in self.alive:
                    self.alive[address].category = cast("Category", category)

    def _look_ahead(self) -> None:
        """Let later marks name what is alive now and lives until then."""
        if self.marks:
            self._first_forward()
        gone: set[int] = set()
        start = max(self.highest_at, 0)
        for i in range(start + 1, len(self.actions)):
            if self.actions[i] == "free_requested":
                gone.add(self.addresses[i])
                self.frees += 1
            elif self.actions[i] == "alloc":
                self.allocations += 1
            while self.marks and self._is_reached(self.marks[0]):
                self._name_survivors(self.marks.pop(0).owners, gone)
        self._name_survivors({"parameter": self.at_end}, gone)

    def _name_survivors(self, owners: Mapping[str, list[int]], gone: set[int]) -> None:
        for category, addresses in owners.items():
            for address in addresses:
                block = self.alive.get(address)
                if block is not None and address not in gone and block.category is None:
                    block.category = cast("Category", category)

    def moment(self) -> Moment:
        """Return what is alive now."""
        sizes: Counter[Category] = Counter()
        rows: Counter[tuple[Category, str]] = Counter()
        counts: Counter[tuple[Category, str]] = Counter()
        for block in self.alive.values():
            category = block.category or born_as(block.phase)
            sizes[category] += block.size
            rows[category, block.line] += block.size
            counts[category, block.line] += 1
        largest = (
            HeldBlock(c, n, counts[c, line], line) for (c, line), n in rows.most_common(_LARGEST)
        )
        return Moment(
            step=self.step,
            phase=self.phase,
            line=self.line,
            requested_bytes=self.live,
            by_category={category: sizes[category] for category in CATEGORIES},
            largest=tuple(largest),
        )


def born_as(phase: str) -> Category:
    """Return what a block of which nothing else is known counts as."""
    if phase == "build":
        return "other"
    return "activation" if phase in ("forward", "profiled step") else "temporary"


def _line(stack: Iterable[Any]) -> str:
    _, _, lines = stack
    if not lines:
        return "(inside backward)"
    shown = [f"{Path(file).name}:{number} {name}" for file, number, name in lines]
    return " < ".join(dict.fromkeys(shown))
