"""Parallel styles: what runs around a module's forward, on the rank's part of its parameters.

    Colwise     weight [O / T, I]: x whole -> y cut along its last dimension, or gathered
    Rowwise     weight [O, I / T]: x cut along its last dimension -> parts of a sum, added up
    Lookup      RowwiseParallel of an embedding, weight [V / T, C]: ids of other ranks are masked
    Gathers     PrepareModuleInput: x cut along the sequence -> whole

`sequence`: what is whole for others is cut along the sequence (Shard(1)) here.

Source: torch/distributed/tensor/parallel/style.py; placement_types.py (_MaskPartial).
"""

from dataclasses import dataclass
from typing import Any

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, empty
from vrambudget.ops.creation import made
from vrambudget.ops.embedding import dense_gradient
from vrambudget.parallel.group import Group
from vrambudget.parallel.tensor.redistribute import (
    gathered,
    gathered_result,
    reduced,
    scattered,
    whole,
)

Kwargs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Colwise:
    """ColwiseParallel; `takes`: as "local" a tensor that every rank has, as "whole" a DTensor."""

    group: Group
    takes: str = "local"  # or "whole", or "sequence": cut along it
    gathers: int = 0  # output_layouts=Replicate(): columns of all ranks

    def call(self, module: Module, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
        """Run the module on its whole input."""
        del kwargs
        (x,) = args
        if self.takes == "local":
            x = whole(x)
        elif self.takes == "sequence":
            x = gathered(x, 1, self.group)
        y = module.forward(x)
        return gathered_result(y, -1, self.group, self.gathers) if self.gathers else y


@dataclass(frozen=True, slots=True)
class Rowwise:
    """RowwiseParallel of a linear layer."""

    group: Group
    sequence: bool = False

    def call(self, module: Module, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
        """Run the module, and add up what the ranks have."""
        del kwargs
        y = module.forward(*args)
        return scattered(y, 1, self.group) if self.sequence else reduced(y)


@dataclass(frozen=True, slots=True)
class Lookup:
    """RowwiseParallel of an embedding of so many rows."""

    group: Group
    rows: int
    sequence: bool = False

    def call(self, module: Module, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
        """Look the rank's own rows up, and add up what the ranks have."""
        del kwargs
        (ids,) = args
        weight: Parameter = module.weight  # type: ignore[attr-defined]
        y, mask = self._masked(ids, weight)
        del mask
        return scattered(y, 1, self.group) if self.sequence else reduced(y)

    def _masked(self, ids: Tensor, weight: Parameter) -> tuple[Tensor, Tensor]:
        kept = keep(ids, when=weight.requires_grad)
        mask, own_ids = masked_ids(ids)
        context.operation = "embedding"
        y = empty((*ids.shape, weight.shape[1]), weight.dtype)
        del own_ids
        count, shape, dtype = ids.numel, (self.rows, weight.shape[1]), weight.dtype

        def backward(dy: Tensor) -> Tensor:
            del dy
            return dense_gradient(count, shape, dtype)

        y = record("embedding", y, inputs=(weight,), saved=(kept,), backward=backward)
        if y.node is not None:  # the gradient is that of the whole weight, on every rank
            y.node.edges = [edge and (edge[0], edge[1], shape, dtype) for edge in y.node.edges]
        return y, mask


@dataclass(frozen=True, slots=True)
class Gathers:
    """PrepareModuleInput: Shard(1) -> Replicate() of the first argument."""

    group: Group

    def call(self, module: Module, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
        """Run the module on its whole input."""
        x, *others = args
        return module.forward(gathered(x, 1, self.group), *others, **kwargs)


def masked_ids(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return which indices are other ranks', and the rank's own from 0 (_MaskPartial)."""
    below = made("lt", ids.shape, bool_)
    above = made("ge", ids.shape, bool_)
    mask = made("bitwise_or", ids.shape, bool_)
    del above, below
    copy = made("clone", ids.shape, int64)
    own = made("sub", ids.shape, int64)
    del copy
    return mask, own
