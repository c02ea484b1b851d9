"""Gradients of stages 1 and 2 that wait to be reduced together.

Source: deepspeed/runtime/zero/stage_1_and_2.py (IPGBucket).
"""

from dataclasses import dataclass, field

from vrambudget.engine.tensor import Parameter, Tensor

Entry = tuple[int, Parameter]  # a group's number, and one of its parameters


@dataclass(slots=True)
class Bucket:
    """IPGBucket: gradients that wait to be reduced together."""

    buffers: list[Tensor] = field(default_factory=list)
    index: int = 0
    entries: list[Entry] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    elements: int = 0
    extra_large: bool = False

    def clear(self) -> None:
        """Forget what was reduced."""
        self.entries.clear()
        self.grads.clear()
        self.elements, self.extra_large = 0, False
