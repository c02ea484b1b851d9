"""What a script's iterations are, and how they were counted.

Each optimizer of a turn steps once in it: a GAN's two optimizers make one iteration. A turn is over
when all optimizers have stepped; where some of them don't step (or not each time), one that steps
again says that the turn before was over, and which optimizers make one. One that DeepSpeed steps
part by part has stepped when all parts have; how many there are is known at the next backward pass.
A script without torch.optim is counted by its backward passes, each to the beginning of the next.

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
        # by optimizer: groups with parameters, parts that it steps in, how many of them stepped
        self.groups: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.parts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.stepped: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

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
        return f"step of {self.together} optimizers" if self.together > 1 else "optimizer step"

    def made(self, optimizer: Any) -> None:
        """Take note of an optimizer."""
        self.alive.add(optimizer)
        self._is_part(optimizer)

    def before_backward(self) -> None:
        """Close the turn if what stepped in parts has stepped: gradients come again."""
        for optimizer, count in list(self.stepped.items()):
            if optimizer not in self.parts:
                self.parts[optimizer] = count
                self._stepped(optimizer)
        self.stepped.clear()

    def before_step(self, optimizer: Any) -> None:
        """Close the turn if this optimizer begins another."""
        self.alive.add(optimizer)
        if optimizer in self.turn:
            self.expected = weakref.WeakSet(self.turn)
            self._close()

    def after_step(self, optimizer: Any) -> None:
        """Close the turn if all have stepped."""
        if self._is_part(optimizer):
            self.stepped[optimizer] = count = self.stepped.get(optimizer, 0) + 1
            if count != self.parts.get(optimizer):
                return
        self._stepped(optimizer)

    def _is_part(self, optimizer: Any) -> bool:
        """Whether groups that had parameters have none now, as DeepSpeed steps one after another.

        Source: deepspeed/runtime/zero/stage_1_and_2.py and stage3.py (_optimizer_step).
        """
        full = sum(bool(group["params"]) for group in optimizer.param_groups)
        self.groups[optimizer] = most = max(full, self.groups.get(optimizer, 0))
        return full < most

    def _stepped(self, optimizer: Any) -> None:
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
