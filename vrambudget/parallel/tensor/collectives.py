"""Functional collectives on a rank's own part: each makes its result, and its input lives on.

    all_reduce       a copy, reduced in place
    all_gather       [T * rows, ...]; along another dimension than the first, a second copy puts the
                     parts in order, unless a view does (all dimensions before it are 1)
    reduce_scatter   along another dimension than the first, a copy puts the parts in order first
    own_part         the rank's part of what all ranks have, a copy

Source: torch/distributed/_functional_collectives.py; torch/_utils.py (_maybe_view_chunk_cat);
torch/distributed/tensor/placement_types.py (Shard, Partial).
Not modelled: dimensions that the ranks cut unevenly, which are padded.
"""

from vrambudget.config.layout import REHEARSE
from vrambudget.engine.checkpoint import results_of
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty, numel
from vrambudget.errors import NotModelledError
from vrambudget.parallel.group import Group


def all_reduce(x: Tensor) -> Tensor:
    """Return the sum of all ranks' x."""
    context.operation = "all_reduce"
    return empty(x.shape, x.dtype)


def all_gather(x: Tensor, dim: int, group: Group) -> Tensor:
    """Return all ranks' x, joined along `dim`."""
    dim %= x.ndim
    context.operation = "all_gather_into_tensor"
    gathered = empty((x.shape[0] * group.size, *x.shape[1:]), x.dtype)
    whole = (*x.shape[:dim], x.shape[dim] * group.size, *x.shape[dim + 1 :])
    if numel(x.shape[:dim]) == 1:
        return Tensor(whole, x.dtype, gathered.storage)
    context.operation = "cat"
    return empty(whole, x.dtype)


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
    """Return the shape of one rank's part. Raises NotModelledError where parts differ."""
    if x.shape[dim] % group.size:
        raise NotModelledError(
            f"{x.shape[dim]} elements cut among tp={group.size} ranks are not modelled: their parts"
            " differ",
            hint="choose a number of ranks that divides the block, the heads and the vocabulary;"
            f" {REHEARSE}",
        )
    return (*x.shape[:dim], x.shape[dim] // group.size, *x.shape[dim + 1 :])
