"""Marks: where on a tape a phase begins.

A phase is any text that says what the loop is doing: "forward", "evaluation", "prefill",
"decode 17", "gather". Reports show it with spaces for underscores. `Phase` has the names of those
that every training loop goes through, which `vrambudget.tape.replay` reads counters at.
"""

from enum import StrEnum
from typing import NamedTuple

from vrambudget.tape.steps import Steps


class Phase(StrEnum):
    """The phases of a plain loop."""

    BUILD = "build"
    LOADING = "loading"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    STEP_END = "step_end"


class Mark(NamedTuple):
    """From `events[position]` on the loop is in `phase` of `step` (steps count from 0)."""

    position: int
    step: int
    phase: str
    resets_allocator: bool = False  # torch.cuda.empty_cache() and reset_peak_memory_stats()
    empties_cache: bool = False  # torch.cuda.empty_cache() alone
    steps: Steps | None = None  # not on the tape one by one, from here to `steps.end`
    period: int = 0  # so many events from here on repeat as many before, with storages of their own

    @property
    def gives_back(self) -> bool:
        """Whether free segments go back to the driver here."""
        return self.resets_allocator or self.empties_cache
