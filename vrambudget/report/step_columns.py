"""Steps that are not on the tape one by one, as columns of the memory curve.

Each column is a moment between two of these steps: what one carries to the next, and what it keeps
to be returned. The tape has what is alive before the first of them, and after the last.

Not modelled: what lives within such a step. The step of the job's peak is on the tape.
"""

from dataclasses import dataclass

from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.marks import Mark
from vrambudget.tape.steps import CARRIED, Pattern, RepeatedStep, Steps, phase_of


@dataclass(frozen=True, slots=True)
class Sample:
    """Between two steps: sizes of what is carried, and what is kept, in bytes."""

    step: int
    carried: tuple[int, ...]
    kept_bytes: int
    allocated_bytes: int
    reserved_bytes: int

    @property
    def phase(self) -> str:
        """The step's name."""
        return phase_of(self.step)


class Samples:
    """Samples of steps: given each as it runs, it keeps those that were asked for."""

    def __init__(self, wanted: set[int]) -> None:
        self.wanted = wanted
        self.found: dict[int, Sample] = {}
        self._kept_bytes = 0
        self._left: dict[int, list[int]] = {}  # by pattern

    def __call__(self, step: RepeatedStep, carried: list[int], allocator: CachingAllocator) -> None:
        """Note a step that has run."""
        left = self._left.get(id(step.pattern))
        if left is None:
            left = self._left[id(step.pattern)] = _left(step.pattern)
        self._kept_bytes += sum(step.sizes[storage] for storage in left)
        if step.number in self.wanted:
            self.found[step.number] = Sample(
                step.number,
                tuple(carried),
                self._kept_bytes,
                allocator.allocated_bytes,
                allocator.reserved_bytes,
            )


def _left(pattern: Pattern) -> list[int]:
    """Return a step's storages that stay, and are not carried on."""
    events = pattern.events
    dead = {~event for event in events if event < 0}
    carried = {final for final in pattern.finals if final < CARRIED}
    return [event for event in events if event >= 0 and event not in dead | carried]


def events_of(steps: Steps) -> int:
    """Return how many events all of them have."""
    return sum(
        stretch.count * len(pattern.events) // len(stretch.patterns)
        for stretch in steps.stretches
        for pattern in stretch.patterns
    )


def shown(steps: Steps, columns: int) -> list[int]:
    """Return the number of the step that each of so many columns shows: the last of its share."""
    first, count = steps.stretches[0].first, sum(stretch.count for stretch in steps.stretches)
    return [first + max(1, (i + 1) * count // columns) - 1 for i in range(columns)]


def kept_for(tape: Tape, mark: Mark, steps: Steps) -> Purpose:
    """Return what it is for that steps keep to be returned."""
    first = tape.next_born(mark.position)
    born = (e.storage for e in tape.read(mark.position, steps.end) if e.change > 0)
    others = [i for i in born if i >= first and i not in steps.after]
    return tape.purposes[others[0]] if others else Purpose.TEMPORARIES
