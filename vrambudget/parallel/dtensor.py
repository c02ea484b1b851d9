"""DTensor, as far as it makes a difference to a loop: parameters that are one rank's part.

A norm of such gradients is a part of the whole norm: it is squared, added up among the ranks, and
its root is taken, each step into new memory (torch/distributed/tensor/placement_types.py,
_NormPartial; functional all_reduce clones).
"""

from vrambudget.engine.context import context
from vrambudget.engine.tensor import Parameter, Tensor, empty_like


class ShardedTensorParameter(Parameter):
    """A parameter whose elements lie on several ranks (a DTensor with Shard placements)."""

    __slots__ = ()


def reduced_norms(norms: Tensor) -> Tensor:
    """Return partial norms [n] as whole ones."""
    context.operation = "pow"
    powers = empty_like(norms)
    context.operation = "all_reduce"
    added = empty_like(powers)
    context.operation = "pow"
    roots = empty_like(added)
    del added, powers
    return roots
