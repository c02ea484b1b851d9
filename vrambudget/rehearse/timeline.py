"""Read the allocator's history: every phase's peak, and what was alive at the highest one.

The recorder's marks (a phase begins; these addresses hold parameters) carry the numbers of
allocations and frees so far, which is their place in the history: the history may have lost its
beginning, the counts have not.

A block's category is that of the first mark which names its address while it is alive. Else where
it was born decides: in backward or in the optimizer's step it is temporary, in forward an
activation, and in a script without any phase it is other.

Not modelled: blocks that wait for another stream count as freed when their tensor died.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from vrambudget.rehearse.record import CATEGORIES, Category, HeldBlock, Moment, PhasePeak

_LARGEST = 8  # rows of the peak's table
_BUILD = "build"  # the only phase where nothing is marked: else the first forward begins with it


@dataclass(slots=True)
class LiveBlock:
    """An allocation: it lives from event `born` until event `died`, None for one that stays."""

    size: int
    born: int
    phase: str
    named: Category | None = None  # by a mark
    died: int | None = None

    @property
    def category(self) -> Category:
        """What the block turns out to be."""
        if self.named:
            return self.named
        if self.phase == _BUILD:
            return "other"
        return "activation" if self.phase in ("forward", "profiled step") else "temporary"


@dataclass(slots=True)
class _Mark:
    phase: str
    allocations: int
    frees: int
    owners: Mapping[str, list[int]]
    done: int  # iterations before it


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the history says; not `complete` where its beginning is lost."""

    phases: tuple[PhasePeak, ...]
    peak: Moment | None
    complete: bool


def read_timeline(record: Mapping[str, Any]) -> Timeline:
    """Return the phases and the peak of a process's record."""
    history = History(record)
    return Timeline(
        phases=tuple(PhasePeak(step, phase, n) for (step, phase), n in history.phases.items()),
        peak=history.moment(history.highest_at) if history.highest else None,
        complete=history.is_complete,
    )


class History:
    """The events in order: the blocks that they make and end, and how things are after each."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        history = record["history"]
        self.actions: list[str] = history["action"]
        self.addresses: list[int] = history["address"]
        self.sizes: list[int] = history["bytes"]
        self.stack_numbers: list[int] = history["stack"]
        self.lines = [_line(stack) for stack in history["stacks"]]
        self.blocks: list[LiveBlock | None] = []  # that an event makes or ends; None: neither
        self.levels: list[int] = []  # bytes alive after each event
        self.places: list[tuple[int, str]] = []  # step and phase of each event
        self.highest, self.highest_at = 0, -1
        # Those with a colon are the runner's own, of a job's steps: the same phases once more.
        self._marks = [_Mark(*mark) for mark in record["marks"] if ":" not in mark[0]]
        self._step, self._phase = 1, "forward" if self._marks else _BUILD
        self.phases = {(1, self._phase): 0} if self._marks else {}
        allocations, frees = map(int, record["counts"])  # at the end
        self._allocations: int = allocations - self.actions.count("alloc")
        self._frees: int = frees - self.actions.count("free_requested")
        self.is_complete = self._allocations <= 0
        self._alive: dict[int, LiveBlock] = {}
        self._replay()
        self._name({"parameter": record.get("parameters", [])})

    def _replay(self) -> None:
        live = 0
        for i, action in enumerate(self.actions):
            self._take_marks(live)
            block = None
            if action == "alloc":
                self._allocations += 1
                block = LiveBlock(self.sizes[i], i, self._phase)
                self._alive[self.addresses[i]] = block
                live += block.size
                if live > self.highest:
                    self.highest, self.highest_at = live, i
                self._note_peak(live)
            elif action == "free_requested":
                self._frees += 1
                block = self._alive.pop(self.addresses[i], None)
                if block is not None:  # else it was born before the history begins
                    block.died = i
                    live -= block.size
            self.blocks.append(block)
            self.levels.append(live)
            self.places.append((self._step, self._phase))
        self._take_marks(live)

    def _take_marks(self, live: int) -> None:
        while self._marks and self._is_reached(self._marks[0]):
            mark = self._marks.pop(0)
            self._step, self._phase = mark.done + 1, mark.phase or self._phase
            self._note_peak(live)
            self._name(mark.owners)

    def _is_reached(self, mark: _Mark) -> bool:
        return mark.allocations <= self._allocations and mark.frees <= self._frees

    def _note_peak(self, live: int) -> None:
        key = (self._step, self._phase)
        self.phases[key] = max(self.phases.get(key, 0), live)

    def _name(self, owners: Mapping[str, Sequence[int]]) -> None:
        """Let blocks that are alive be what a mark says of them, from their birth on."""
        for category, addresses in owners.items():
            for address in addresses:
                block = self._alive.get(address)
                if block is not None and block.named is None:
                    block.named = cast("Category", category)

    def line(self, event: int) -> str:
        """Return the line of the script that an event is of."""
        return self.lines[self.stack_numbers[event]]

    def moment(self, event: int) -> Moment:
        """Return what is alive after an allocation."""
        sizes: Counter[Category] = Counter()
        rows: Counter[tuple[Category, str]] = Counter()
        counts: Counter[tuple[Category, str]] = Counter()
        for i, block in enumerate(self.blocks[: event + 1]):
            if block and block.born == i and (block.died is None or block.died > event):
                row = block.category, self.line(i)
                sizes[block.category] += block.size
                rows[row] += block.size
                counts[row] += 1
        step, phase = self.places[event]
        return Moment(
            step=step,
            phase=phase,
            line=self.line(event),
            requested_bytes=self.levels[event],
            by_category={category: sizes[category] for category in CATEGORIES},
            largest=tuple(
                HeldBlock(row[0], n, counts[row], row[1]) for row, n in rows.most_common(_LARGEST)
            ),
        )


def _line(stack: Iterable[Any]) -> str:
    _, _, lines = stack
    if not lines:
        return "(inside backward)"
    shown = [f"{Path(file).name}:{number} {name}" for file, number, name in lines]
    return " < ".join(dict.fromkeys(shown))
