"""Peaks of a generation's parts, as a hook on the model's forward pass would read them.

setup   until the first forward pass: inputs, masks; an encoder
first   the first forward pass and the choice of a token after it: prefill, or its first chunk
later   all that follows
"""

from dataclasses import dataclass

from vrambudget.tape.allocators import allocator_for
from vrambudget.tape.events import Tape
from vrambudget.tape.steady import run


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks of one part, in bytes."""

    requested: int
    allocated: int
    reserved: int


def peaks_by_part(tape: Tape) -> dict[str, Peaks]:
    """Return the peaks of "setup", "first" and "later" (absent where there is one forward pass)."""
    allocator = allocator_for(tape)
    parts, found = iter(("setup", "first")), dict[str, Peaks]()

    def note(part: str) -> None:
        found[part] = Peaks(
            allocator.peak_requested_bytes,
            allocator.peak_allocated_bytes,
            allocator.peak_reserved_bytes,
        )
        allocator.reset_peaks()

    forwards = 0
    for mark, _ in run(tape, allocator):
        if mark.resets_allocator:
            allocator.reset_peaks()
        elif mark.phase.startswith(("prefill", "decode")):
            forwards += 1
            if (part := next(parts, None)) is not None:
                note(part)
    note("later" if forwards > 1 else "first")
    return found
