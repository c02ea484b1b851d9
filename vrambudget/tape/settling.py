"""Steps after the last one of a tape, until the allocator stands as it stood before one of them.

A step finds free blocks where those before it left them, so the third may repeat the second, event
by event, and yet lie elsewhere in memory and reserve more. Such a step is replayed again, with
storages of its own, until the allocator stands at its end as it stood at the end of an earlier one:
the same free blocks, and what the next step frees in the same places. From there on no peak is new.
"""

from collections.abc import Callable
from typing import NamedTuple

from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.events import MOST_STORAGES, Tape
from vrambudget.tape.marks import Phase
from vrambudget.tape.packing import died_in, renamed

MOST_STEPS = 16
"""Where a job is left that has not settled, with micro-batches after as many forward passes: of 351
records two reserve 1 % more in 40 steps."""

_COLUMNS = ("sizes", "purposes", "operations", "contents", "modules")


class LastStep(NamedTuple):
    """The last step of a tape, which repeats the one before it: where it begins, and ends."""

    event: int
    storage: int
    mark: int
    end: int


class Settling:
    """Replays the last step of a tape, as long as the allocator has not settled.

    `matters` is asked once, at the end of the tape: whether what later steps reserve may decide.
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
        """Whether another step was replayed, once the mark of this number is reached."""
        tape = self._tape
        here = tape.marks[mark]
        if self.is_over or here.phase != Phase.STEP_END or here.position < self._from:
            return False
        number = (here.position - self._from) // len(self._events)
        found = [i + number * self._storages for i in self._found]
        stands = self._allocator.state(), self._allocator.blocks(found)
        was_passed_over = number > 0 and number - 1 not in self._stood
        self.is_over = was_passed_over or stands in self._stood.values()
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
        self._lay(number)
        return True

    def _lay(self, number: int) -> None:
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
