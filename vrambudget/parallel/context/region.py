"""`with context_parallel(mesh, buffers=...)`: inside, a rank has its part of each buffer.

    indices    [1, T]     int32, the order in which every rank has a head and a tail; goes at once
    a part     [.., T / ranks, ..]  of each buffer, held to the end of the region
    a buffer               keeps its memory, and is resized to the part
    originals              of what is restored: copies, held to the end

Attention is ring attention inside, in backward too.

Source: torch/distributed/tensor/experimental/_context_parallel/_attention.py (context_parallel,
_context_parallel_buffers), _load_balancer.py (_HeadTailLoadBalancer); torch/distributed/tensor/
placement_types.py (Shard._select_split_tensor), 2.11.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from vrambudget.dtypes import int32
from vrambudget.engine.context import context, made_for
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.errors import VramBudgetError
from vrambudget.ops.creation import made
from vrambudget.parallel.context.ring import Ring
from vrambudget.tape.events import Purpose


class Buffer(NamedTuple):
    """A tensor that is cut along `dim`, and whether it is whole again after the region."""

    tensor: Tensor
    dim: int
    restored: bool = False


@contextmanager
def context_parallel(ring: Ring, buffers: Sequence[Buffer]) -> Iterator[None]:
    """Cut the buffers, and make attention pass around the ring. Raises VramBudgetError."""
    length, ranks = buffers[0].tensor.shape[buffers[0].dim], ring.group.size
    if length % (2 * ranks):
        raise VramBudgetError(
            f"a block of {length} tokens cannot be cut into a head and a tail for each of {ranks}"
            " ranks",
            hint=f"choose a multiple of {2 * ranks}: context_parallel's load balancer asserts it",
        )
    shapes = [buffer.tensor.shape for buffer in buffers]
    with made_for(Purpose.INPUTS):
        originals = [_clone(buffer.tensor) for buffer in buffers if buffer.restored]
        shards = _shards(buffers, length, ranks)
        for buffer, shard in zip(buffers, shards, strict=True):
            shard = _clone(shard)  # noqa: PLW2901 - as in the source, held like it
            buffer.tensor.shape = shard.shape
    before, context.attention = context.attention, ring.attention
    try:
        yield
    finally:
        context.attention = before
    del originals, shards, shard  # held until here
    for buffer, shape in zip(buffers, shapes, strict=True):
        if buffer.restored:
            buffer.tensor.shape = shape


def _shards(buffers: Sequence[Buffer], length: int, ranks: int) -> list[Tensor]:
    """_context_parallel_buffers: each put in order whole, then the rank's part of it cloned."""
    indices = made("to_device", (1, length), int32)
    shards = []
    for x, dim, _ in buffers:
        ordered = made("index_select" if dim == 0 else "gather", x.shape, x.dtype)
        context.operation = "clone"
        part = (*x.shape[:dim], x.shape[dim] // ranks, *x.shape[dim + 1 :])
        shards.append(empty(part, x.dtype))
        del ordered
    del indices
    return shards


def _clone(x: Tensor) -> Tensor:
    return made("clone", x.shape, x.dtype)
