"""Functional collectives on a rank's own part: each makes its result, and its input lives on.

    all_reduce       a copy, reduced in place
    all_gather       [T * rows, ...]; along another dimension than the first, a second copy puts the
                     parts in order, unless a view does (all dimensions before it are 1); parts that
                     differ are padded before, and the result is a view without the padding
    reduce_scatter   along another dimension than the first, a copy puts the parts in order first
    own_part         the rank's part of what all ranks have, a copy

Source: torch/distributed/_functional_collectives.py; torch/_utils.py (_maybe_view_chunk_cat);
torch/distributed/tensor/placement_types.py (Shard, Partial).
"""

from vrambudget.engine.checkpoint import results_of
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty, numel
from vrambudget.parallel.group import Group


def all_reduce(x: Tensor) -> Tensor:
    """Return the sum of all ranks' x."""
    context.operation = "all_reduce"
    return empty(x.shape, x.dtype)


def all_gather(x: Tensor, dim: int, group: Group, length: int | None = None) -> Tensor:
    """Return all ranks' x, joined along `dim`: of `length`, where their parts may differ."""
    dim %= x.ndim
    length = x.shape[dim] * group.size if length is None else length
    before, part, after = x.shape[:dim], group.padded(length), x.shape[dim + 1 :]
    context.operation = "constant_pad_nd"
    sent = x if x.shape[dim] == part else empty((*before, part, *after), x.dtype)
    context.operation = "all_gather_into_tensor"
    y = empty((sent.shape[0] * group.size, *sent.shape[1:]), x.dtype)
    whole = (*before, part * group.size, *after)
    context.operation = "cat"
    y = Tensor(whole, x.dtype, y.storage) if numel(before) == 1 else empty(whole, x.dtype)
    return y if length == whole[dim] else y.viewed((*before, length, *after), y.actual_strides())


def reduce_scatter(x: Tensor, dim: int, group: Group) -> Tensor:
    """Return the rank's part along `dim` of the sum of all ranks' x."""
    dim %= x.ndim
    copy = None
    if dim:
        context.operation = "cat"
        copy = empty(x.shape, x.dtype)
    context.operation = "reduce_scatter_tensor"
    (part,) = results_of(context.operation, lambda: (empty(part_of(x, dim, group), x.dtype),))
    del copy
    return part


def own_part(x: Tensor, dim: int, group: Group) -> Tensor:
    """Return the rank's part along `dim` of what every rank has."""
    context.operation = "clone"
    return empty(part_of(x, dim % x.ndim, group), x.dtype)


def part_of(x: Tensor, dim: int, group: Group) -> tuple[int, ...]:
    """Return the shape of this rank's part: the last ranks' may be smaller, as torch.chunk cuts."""
    return (*x.shape[:dim], group.local(x.shape[dim]), *x.shape[dim + 1 :])
