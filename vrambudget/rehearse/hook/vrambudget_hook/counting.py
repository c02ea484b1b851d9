"""What a script's iterations are, and how they were counted.

In an iteration each optimizer steps once: a GAN's two optimizers make one iteration. It is over
when all optimizers have stepped. If some do not step, or not each time, an optimizer that steps
again shows that the iteration before is over, and which optimizers make one. DeepSpeed steps an
optimizer part by part: it has stepped when all parts have, whose number is known at the next
backward pass. A script without torch.optim is counted by its backward passes, each to the beginning
of the next.

Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

import weakref
from typing import Any


class Iterations:
    """The count of one process."""

    def __init__(self) -> None:
        self.alive: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers
        self.have_stepped: weakref.WeakSet[Any] = weakref.WeakSet()  # in this iteration
        self.expected: weakref.WeakSet[Any] | None = None  # of a whole iteration, once known
        self.iterations = self.backwards = self.together = 0
        # by optimizer: groups with parameters, parts that it steps in, how many of them stepped
        self.groups: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.parts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.stepped: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @property
    def done(self) -> int:
        """How many iterations are over."""
        return self.backwards if self.is_by_backward else self.iterations

    @property
    def is_by_backward(self) -> bool:
        """Whether no optimizer has stepped so far, nor will."""
        return not self.iterations and not self.have_stepped and not self.alive

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
        """End the iteration if what stepped in parts has stepped: there are new gradients."""
        for optimizer, count in list(self.stepped.items()):
            if optimizer not in self.parts:
                self.parts[optimizer] = count
                self._stepped(optimizer)
        self.stepped.clear()

    def before_step(self, optimizer: Any) -> None:
        """End the iteration if this optimizer begins another."""
        self.alive.add(optimizer)
        if optimizer in self.have_stepped:
            self.expected = weakref.WeakSet(self.have_stepped)
            self._end()

    def after_step(self, optimizer: Any) -> None:
        """End the iteration if all have stepped."""
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
        self.have_stepped.add(optimizer)
        whole = self.alive if self.expected is None else self.expected
        if all(other in self.have_stepped for other in whole):
            self._end()

    def after_backward(self) -> None:
        """Count a backward pass that is over."""
        self.backwards += 1

    def _end(self) -> None:
        self.iterations += 1
        self.together = max(self.together, len(self.have_stepped))
        self.have_stepped.clear()
