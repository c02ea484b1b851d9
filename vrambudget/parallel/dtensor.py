"""DTensor, as far as it makes a difference to a loop: parameters that are one rank's part.

A norm of such gradients is a part of the whole norm: it is squared, added up among the ranks, and
its root is taken, each step into new memory, once for each dimension of the mesh
(torch/distributed/tensor/placement_types.py, _NormPartial; functional all_reduce clones).

With tensor parallelism a gradient may lie otherwise than its parameter:

    whole     an embedding's, cut by rows: every rank has all rows (_embedding_ops.py: replicated
              gradients and indices)
    partial   a norm's whose input is cut along the sequence: its sum is not added up yet

Each operation of a step that reads both redistributes such a gradient into new memory, which dies
with the operation (_dispatch.py, redistribute_local_args).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from vrambudget.engine.context import context
from vrambudget.engine.tensor import Parameter, Tensor, empty, empty_like

Lies = Literal["like it", "whole", "partial"]


class Placement(NamedTuple):
    """How a parameter and its gradient lie on a mesh."""

    gradient: Lies = "like it"
    is_replicated: bool = False  # along one of two dimensions
    dimensions: int = 1

    @property
    def has_whole_norm(self) -> bool:
        """Whether some ranks have the same norm of the gradient."""
        return self.gradient != "like it" or self.is_replicated


_ON_ONE_RANK = Placement()


class ShardedTensorParameter(Parameter):
    """A parameter whose elements lie on several ranks (a DTensor)."""

    __slots__ = ("placement",)

    placement: Placement


def placement_of(parameter: Parameter) -> Placement:
    """Return how a parameter lies; one that is no DTensor is nowhere else."""
    if isinstance(parameter, ShardedTensorParameter):
        return parameter.placement
    return _ON_ONE_RANK


def redistributed(parameters: Sequence[Parameter]) -> list[Tensor]:
    """Return the gradients that lie otherwise than their parameters, as these lie."""
    sharded = (p for p in parameters if isinstance(p, ShardedTensorParameter))
    moved = (p for p in sharded if p.placement.gradient != "like it")
    return [as_it_lies(p.shape, p.grad) for p in moved if p.grad is not None]


def reduced_gradients(parameters: Sequence[Parameter]) -> list[Tensor]:
    """Return the gradients that are parts of a sum, added up."""
    return redistributed([p for p in parameters if placement_of(p).gradient == "partial"])


def as_it_lies(shape: tuple[int, ...], gradient: Tensor) -> Tensor:
    """Return a gradient redistributed to its parameter's placement, of this shape."""
    context.operation = "redistribute"
    return empty(shape, gradient.dtype)


def whole_norms(parameters: Sequence[Parameter], stacked: Tensor) -> Tensor:
    """Return the stacked norms [n] of parameters' gradients, each of all ranks."""
    whole = stacked
    if isinstance(parameters[0], ShardedTensorParameter):
        for _ in range(parameters[0].placement.dimensions):
            whole = _added_up(whole)
    return whole


def parts_of_norms(parameters: Sequence[Parameter], norms: Sequence[Tensor]) -> list[Tensor]:
    """Return norms that several ranks have as parts of a norm, to be stacked with the others."""
    context.operation = "stack"
    pairs = zip(parameters, norms, strict=True)
    return [empty_like(norm) for p, norm in pairs if placement_of(p).has_whole_norm]


def _added_up(norms: Tensor) -> Tensor:
    context.operation = "pow"
    powers = empty_like(norms)
    context.operation = "all_reduce"
    added = empty_like(powers)
    context.operation = "pow"
    roots = empty_like(added)
    del added, powers
    return roots
