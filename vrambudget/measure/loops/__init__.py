"""Training loops in torch, by the names that a job has for them.

Each does what its twin of the same name in `vrambudget.training.loops` counts, statement by
statement: which of its variables lives how long decides the peak.
"""

from importlib import import_module
from typing import Any, Protocol

from vrambudget.measure.loops.run import MeasuredRun

NAMES = ("plain", "accelerate", "lightning", "trainer", "sft", "dpo", "nanogpt")
PREPARING = ("sft", "dpo")
"""The loops whose trainers put adapters and checkpointing into the model themselves."""


class RealLoop(Protocol):
    """What a loop's module has."""

    def train(self, run: MeasuredRun) -> dict[str, Any]:
        """Train."""

    def evaluate(self, run: MeasuredRun) -> dict[str, Any]:
        """Evaluate, without training."""


def real_loop(name: str) -> RealLoop:
    """Return a loop's module; raise ValueError for a name that is not known."""
    if name not in NAMES:
        raise ValueError(f"loop {name!r} is not known; there is {', '.join(NAMES)}")
    loop: RealLoop = import_module(f"{__name__}.{name}")
    return loop
