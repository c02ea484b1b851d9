"""Training loops by name: each is modelled here, and run in torch by `vrambudget.measure.loops`.

A loop is a module with two functions, `train(run)` and `evaluate(run)`, that read like a user's
script and return what their variables hold at the end (`locals()`: a script's variables live as
long as it does). Its twin of the same name does the same in torch.
"""

from importlib import import_module
from typing import Any, Protocol

from vrambudget.training.loops.run import Run


class TrainingLoop(Protocol):
    """What a loop's module has."""

    def train(self, run: Run) -> dict[str, Any]:
        """Train."""

    def evaluate(self, run: Run) -> dict[str, Any]:
        """Evaluate, without training."""


def loop_named(name: str) -> TrainingLoop:
    """Return a loop's module, by a name that a job may have; a job needs no other."""
    loop: TrainingLoop = import_module(f"{__name__}.{name}")
    return loop
