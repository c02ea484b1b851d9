"""Steps after the last one of a tape, until the allocator is in a state that it was in before.

A step finds free blocks where those before it left them. So the third may repeat the second, event
by event, and yet lie elsewhere in memory and reserve more. The last step is therefore appended
again, with storages of its own, until the allocator ends a step as it ended an earlier one: the
same free blocks, and what the next step frees in the same places. What follows is a cycle of the
steps since then, so no later step has a new peak. To wait for a few steps without a new peak would
not do: memory may grow after them.
"""

from collections.abc import Callable
from typing import NamedTuple

from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.events import MOST_STORAGES, Tape
from vrambudget.tape.marks import Phase
from vrambudget.tape.packing import died_in, renamed

MOST_STEPS = 16
"""The most steps; with micro-batches, the most forward passes. Of 351 records two reserve over 1 %
more in 40 steps."""

_COLUMNS = ("sizes", "purposes", "operations", "contents", "modules")


class LastStep(NamedTuple):
    """The last step of a tape, which repeats the one before it: where it begins, and ends."""

    event: int
    storage: int
    mark: int
    end: int


class Settling:
    """Appends the last step of a tape until the allocator is in its steady state.

    `matters` is called once, at the end of the tape: whether what later steps reserve can change
    the verdict.
    """

    def __init__(
        self, tape: Tape, allocator: CachingAllocator, matters: Callable[[], bool]
    ) -> None:
        self._tape, self._allocator, last = tape, allocator, tape.last_step
        self.is_over = last is None or not tape.is_fast or last.end != len(tape.events)
        if last is None or self.is_over:
            return
        self._matters = matters
        self._last, self._from = last, last.event
        self._events = tape.events[last.event :]
        self._columns = {name: getattr(tape, name)[last.storage :] for name in _COLUMNS}
        self._marks = tape.marks[last.mark :]
        self._passes = sum(mark.phase == Phase.FORWARD for mark in self._marks) or 1
        self._storages = len(self._columns["sizes"])
        died = died_in(self._events, is_fast=True)
        self._found = sorted(i for i in died if i < last.storage)
        self._stood: dict[int, tuple[object, list[object]]] = {}  # at the ends of steps

    def goes_on(self, mark: int) -> bool:
        """Append another step if it is needed, at the mark of this number; return whether."""
        tape = self._tape
        here = tape.marks[mark]
        if self.is_over or here.phase != Phase.STEP_END or here.position < self._from:
            return False
        number = (here.position - self._from) // len(self._events)
        found = [i + number * self._storages for i in self._found]
        stands = self._allocator.state(), self._allocator.blocks(found)
        was_skipped = number > 0 and number - 1 not in self._stood
        self.is_over = was_skipped or stands in self._stood.values()
        self._stood[number] = stands
        if self.is_over or mark + 1 < len(tape.marks):
            return False
        if tape.last_step is not None and not self._matters():
            self.is_over = True
            return False
        full = len(tape.sizes) + self._storages > MOST_STORAGES
        if (here.step + 1) * self._passes >= MOST_STEPS or full:
            self.is_over = True
            return False
        self._append(number)
        return True

    def _append(self, number: int) -> None:
        """Append the step once more; the lists are new, for other tapes may share the old ones."""
        tape, shift = self._tape, number * self._storages
        tape.last_step = None
        first = self._last.storage - self._storages
        tape.events = tape.events + renamed(self._events, shift, first, {}, is_fast=True)
        for name, column in self._columns.items():
            setattr(tape, name, getattr(tape, name) + column)
        by = number * len(self._events)
        tape.marks = [
            *tape.marks,
            *(m._replace(position=m.position + by, step=m.step + number) for m in self._marks),
        ]
