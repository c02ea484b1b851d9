"""What a script's iterations are, and how they were counted.

Each optimizer of a turn steps once in it: a GAN's two optimizers make one iteration. A turn is over
when all optimizers have stepped; where some of them don't step (or not each time), one that steps
again says that the turn before was over, and which optimizers make one. A script without
torch.optim is counted by its backward passes, each to the beginning of the next.

Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

import weakref
from typing import Any


class Iterations:
    """The count of one process."""

    def __init__(self) -> None:
        self.alive: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers
        self.turn: weakref.WeakSet[Any] = weakref.WeakSet()  # those that stepped in this one
        self.expected: weakref.WeakSet[Any] | None = None  # those of a whole turn, once it is known
        self.turns = self.backwards = self.together = 0

    @property
    def done(self) -> int:
        """How many iterations are over."""
        return self.backwards if self.is_by_backward else self.turns

    @property
    def is_by_backward(self) -> bool:
        """Whether no optimizer has stepped so far, nor will."""
        return not self.turns and not self.turn and not self.alive

    @property
    def unit(self) -> str:
        """What was counted, in words."""
        if self.is_by_backward and self.backwards:
            return "backward pass"
        return f"turn of {self.together} optimizers" if self.together > 1 else "optimizer step"

    def made(self, optimizer: Any) -> None:
        """Take note of an optimizer."""
        self.alive.add(optimizer)

    def before_step(self, optimizer: Any) -> None:
        """Close the turn if this optimizer begins another."""
        self.alive.add(optimizer)
        if optimizer in self.turn:
            self.expected = weakref.WeakSet(self.turn)
            self._close()

    def after_step(self, optimizer: Any) -> None:
        """Close the turn if all have stepped."""
        self.turn.add(optimizer)
        whole = self.alive if self.expected is None else self.expected
        if all(other in self.turn for other in whole):
            self._close()

    def after_backward(self) -> None:
        """Count a backward pass that is over."""
        self.backwards += 1

    def _close(self) -> None:
        self.turns += 1
        self.together = max(self.together, len(self.turn))
        self.turn.clear()
