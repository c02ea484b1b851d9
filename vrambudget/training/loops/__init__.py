"""Training loops by name: each is counted here, and run in torch by `vrambudget.measure.loops`.

A loop is a module with two functions, `train(run)` and `evaluate(run)`, that read like a user's
script and return what their variables hold at the end (`locals()`: a script's variables live as
long as it does). Its twin of the same name does the same in torch.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from vrambudget.training.loops import accelerate, lightning, plain, trainer
from vrambudget.training.loops.run import Run


class CountedLoop(Protocol):
    """What a loop's module has."""

    def train(self, run: Run) -> dict[str, Any]:
        """Train."""

    def evaluate(self, run: Run) -> dict[str, Any]:
        """Evaluate, without training."""


LOOPS: Mapping[str, CountedLoop] = {
    "plain": plain,
    "accelerate": accelerate,
    "lightning": lightning,
    "trainer": trainer,
}
