"""What all optimizers share: which parameters they step, their states, groups of one type.

Parameters without a gradient get no states and no update.

Source: torch/optim/optimizer.py (zero_grad); torch/utils/_foreach_utils.py.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from vrambudget.dtypes import DType
from vrambudget.engine.context import context, made_for, no_grad
from vrambudget.engine.tensor import Parameter, Tensor, empty
from vrambudget.tape.events import Purpose

Implementation = Literal["foreach", "fused", "for-loop"]


class Optimizer:
    """The part of torch.optim.Optimizer that the loop uses: `step` and `zero_grad`."""

    def __init__(self, parameters: Sequence[Parameter], implementation: Implementation) -> None:
        self.parameters = list(parameters)
        self.cleared: Sequence[Parameter] = self.parameters  # by zero_grad; other ranks' too
        self.implementation = implementation

    def step(self) -> None:
        """Update all parameters that have a gradient."""
        with no_grad():
            self._update([p for p in self.parameters if p.grad is not None])

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Drop all gradients; or zero them where they are, which allocates nothing."""
        for parameter in self.cleared if set_to_none else ():
            parameter.grad = None

    def _update(self, parameters: list[Parameter]) -> None:
        raise NotImplementedError


def new_state(operation: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Allocate what an optimizer keeps from its first step on."""
    context.operation = operation
    with made_for(Purpose.OPTIMIZER_STATES):
        return empty(shape, dtype)


def by_type(tensors: Sequence[Parameter]) -> Iterator[list[Parameter]]:
    """Yield groups of one type, in PyTorch's order: the type that was seen last comes first.

    _group_tensors_by_device_and_dtype returns a hash map that is read from its newest entry.
    """
    groups: dict[DType, list[Parameter]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    yield from reversed(groups.values())
