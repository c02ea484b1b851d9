"""Compare the estimate, the rehearsal and the measurement of one job, and find where they differ.

`first_difference` compares two lists of allocations, those of a tape and those of a rehearsal, and
stops at the first that differs in size, or before which more or less is alive. It is how a new
architecture becomes exact: the rule that explains the difference is missing.

Of a compiled job the first step is left out: the compiler's benchmarks call kernels as often as a
GPU's clock has them called.

The order of frees between two allocations does not matter: the allocator ends in the same state.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vrambudget.rehearse.events import AllocatorEvent
from vrambudget.tape.events import Tape


@dataclass(frozen=True, slots=True)
class Allocation:
    """One allocation, in requested bytes, and what was freed since the one before."""

    bytes: int
    label: str  # phase, operation and where
    freed_bytes: int
    freed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first allocation that differs; `expected` or `actual` is None where one list ends."""

    index: int
    expected: Allocation | None
    actual: Allocation | None
    expected_alive_bytes: int  # just before it
    actual_alive_bytes: int


def of_tape(tape: Tape) -> list[Allocation]:
    """Return the allocations of an estimate, up to the end of its last step."""
    marks = iter([*tape.marks, None])
    following = next(marks)
    phase = "build"
    end = tape.marks[-1].position if tape.marks else len(tape.events)

    def labelled() -> Iterator[tuple[bool, int, str]]:
        nonlocal following, phase
        for position, event in enumerate(tape.read(0, end)):
            while following is not None and following.position <= position:
                phase = f"{following.step}:{following.phase}"
                following = next(marks)
            storage = event.storage
            label = f"{phase} {tape.operations[storage]} ({tape.purposes[storage]})"
            if event.change:
                yield event.change > 0, tape.sizes[storage], label

    return _grouped(labelled())


def of_events(events: Iterable[AllocatorEvent]) -> list[Allocation]:
    """Return the allocations of a rehearsal."""
    return _grouped(
        (e.action == "alloc", e.bytes, f"{e.phase} {e.node or e.operation} {e.line}".strip())
        for e in events
        if e.action in ("alloc", "free_completed")
    )


def after_first_step(allocations: Iterable[Allocation]) -> list[Allocation]:
    """Return the allocations after step 0, in which PyTorch compiles; all before them as one."""
    alive, rest = 0, list[Allocation]()
    for allocation in allocations:
        if rest or allocation.label.startswith("1:"):
            rest.append(allocation)
        else:
            alive += allocation.bytes - allocation.freed_bytes
    return [Allocation(alive, "what lives after step 0", 0, ()), *rest]


def _grouped(events: Iterable[tuple[bool, int, str]]) -> list[Allocation]:
    result: list[Allocation] = []
    freed_bytes, freed = 0, list[str]()
    for is_allocation, size, label in events:
        if not size:
            continue
        if is_allocation:
            result.append(Allocation(size, label, freed_bytes, tuple(freed)))
            freed_bytes, freed = 0, []
        else:
            freed_bytes += size
            freed.append(f"{size:,} B {label}")
    return result


def first_difference(
    expected: Sequence[Allocation], actual: Sequence[Allocation]
) -> Difference | None:
    """Return the first difference, or None if the lists agree to the end of `expected`."""
    alive = [0, 0]
    for index, mine in enumerate(expected):
        other = actual[index] if index < len(actual) else None
        alive[0] -= mine.freed_bytes
        if other is None:
            return Difference(index, mine, None, *alive)
        alive[1] -= other.freed_bytes
        if mine.bytes != other.bytes or alive[0] != alive[1]:
            return Difference(index, mine, other, *alive)
        alive = [live + mine.bytes for live in alive]
    return None
