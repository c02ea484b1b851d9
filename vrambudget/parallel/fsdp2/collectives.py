"""The all-gather and the reduce-scatter of one group's parameters: buffers, and on which stream.

    all-gather       input  cast to param_dtype, if that is another: P / W     copy-in stream
                     output P, the input is a part of it                       copy-in stream
                     copy-out into each parameter's own memory                 current stream
    reduce-scatter   input  P in reduce_dtype                                  current stream
                     output P / W; cast to the original type, if another       reduce stream

Both copies are one kernel over all parameters, whose table of blocks lies on the GPU meanwhile.

Source: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py;
aten/src/ATen/native/cuda/TensorShape.cu (split_with_sizes_copy_out_cuda,
_chunk_cat_out_cuda: get_chunk_cat_metadata, pack_vecs; 16-byte reads by blocks of 128 threads).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from vrambudget.dtypes import DType
from vrambudget.engine.context import context, made_for, on_stream
from vrambudget.engine.tensor import Tensor, empty, empty_bytes
from vrambudget.engine.versions import torch_since
from vrambudget.parallel.fsdp2.parameter import ShardedParameter, ShardedState
from vrambudget.parallel.group import Group
from vrambudget.tape.events import Purpose, Storage

COPY_IN, REDUCE_SCATTER, ALL_REDUCE = 1, 2, 3
"""Streams besides the default one; all-gathers have one more, on which nothing is allocated."""

_BLOCK_BYTES = 2048  # BLOCK_SIZE (128) * BYTES_PER_THREAD (16)
_BLOCK_THREADS = 64  # of the split's kernel


class Reduced(NamedTuple):
    """What a reduce-scatter leaves behind: kept until the next one."""

    input: Tensor
    all_reduce_input: Tensor | None
    partial_output: Tensor | None


def foreach_all_gather(
    parameters: Sequence[ShardedParameter], group: Group, copy_in_stream: int
) -> Storage:
    """Begin to gather, and return the output; the cast input dies when this returns."""
    with on_stream(copy_in_stream), made_for(Purpose.COMMUNICATION):
        inputs = all_gather_inputs(parameters)
        context.operation = "all_gather_output"
        output = empty_bytes(sum(_shard_bytes(parameters)) * group.size)  # several types: as bytes
        del inputs
    return output


def _shard_bytes(parameters: Sequence[ShardedParameter]) -> list[int]:
    """Return what this rank gives to a gather of each parameter."""
    return [p.input_numel * p.gather_dtype.itemsize for p in parameters]


def all_gather_inputs(parameters: Sequence[ShardedParameter]) -> list[Tensor]:
    """Return what is given to a gather: one flat cast of all, or each by itself from main memory.

    Source: _get_param_all_gather_inputs; FSDPParam.all_gather_inputs for one by itself.
    """
    context.operation = "all_gather_input"
    if parameters[0].offload and parameters[0].state is ShardedState.SHARDED:
        return [_from_host(parameter) for parameter in parameters]
    cast = [p for p in parameters if p.param_dtype is not None]
    if not cast:
        return []
    return [empty((sum(p.input_numel for p in cast),), cast[0].gather_dtype)]


def _from_host(parameter: ShardedParameter) -> Tensor:
    on_device = empty((parameter.padded_numel,), parameter.orig_dtype)
    if parameter.param_dtype is None:
        return on_device
    return empty((parameter.padded_numel,), parameter.param_dtype)


def foreach_all_gather_copy_out(parameters: Sequence[ShardedParameter], group: Group) -> None:
    """Copy each parameter out of the flat output into memory of its own."""
    for parameter in parameters:
        parameter.alloc_all_gather_outputs()
    context.operation = "split_with_sizes_copy"
    with made_for(Purpose.COMMUNICATION):
        table = empty_bytes(_split_table_bytes(_shard_bytes(parameters), group.size))
    del table


def _split_table_bytes(shard_bytes: Sequence[int], world_size: int) -> int:
    """Bytes of the table for split_with_sizes_copy_out of [W, sum of shards]."""
    platform = context.platform
    blocks = world_size * sum(-(-n // _BLOCK_BYTES) for n in shard_bytes)
    resident = platform.multiprocessors * platform.max_threads_per_multiprocessor // _BLOCK_THREADS
    factor = -(-blocks // resident)
    rounds = -(-factor // min(math.isqrt(factor - 1) + 1, world_size))
    per_round = sum(-(-n // (_BLOCK_BYTES * rounds)) for n in shard_bytes)
    return 8 * (4 * len(shard_bytes) + 1 + per_round)


def _chunk_cat_table_bytes(chunk_bytes: Sequence[int]) -> int:
    """Bytes of the table for _chunk_cat; a tensor's chunk is that of one rank, in reduce_dtype."""
    blocks = sum(-(-n // _BLOCK_BYTES) for n in chunk_bytes)
    return 8 * (6 * len(chunk_bytes) + 2 + blocks)


def foreach_reduce(
    parameters: Sequence[ShardedParameter],
    unsharded_grads: list[Tensor],
    group: Group,
    reduce_dtype: DType | None,
    all_reduce: Group | None,
    *,
    all_reduce_grads: bool,
    partial_output: Tensor | None,
) -> Reduced:
    """Reduce gradients, which die here, and give the shards their part of the result."""
    reduce_dtype = reduce_dtype or unsharded_grads[0].dtype
    numels = [parameter.padded_numel for parameter in parameters]
    context.operation = "reduce_scatter_input"
    with made_for(Purpose.COMMUNICATION):
        scatter_input = empty((sum(numels) * group.size,), reduce_dtype)
        context.operation = "chunk_cat"
        table = empty_bytes(_chunk_cat_table_bytes([n * reduce_dtype.itemsize for n in numels]))
        del table
    # Until 2.14 a loop over the gradients ended at the last one, and its variable holds it still.
    is_held = group.size > 1 and not torch_since(2, 15)
    unsharded_grad = unsharded_grads[-1] if is_held else None
    unsharded_grads.clear()
    with on_stream(REDUCE_SCATTER), made_for(Purpose.GRADIENTS):
        context.operation = "reduce_scatter_output"
        output = empty((sum(numels),), reduce_dtype)
    if all_reduce is not None and not all_reduce_grads:
        return Reduced(scatter_input, None, partial_output or output)
    reduced = output if all_reduce is not None else None
    with on_stream(REDUCE_SCATTER if all_reduce is None else ALL_REDUCE):
        _view_out(parameters, output)
    del unsharded_grad
    return Reduced(scatter_input, reduced, None)


def _view_out(parameters: Sequence[ShardedParameter], output: Tensor) -> None:
    """Cast the reduced gradients, if need be, and let each shard have its part as a view."""
    dtype = parameters[0].orig_dtype
    if output.dtype is not dtype:
        context.operation = "to_copy"
        with made_for(Purpose.GRADIENTS):
            output = empty(output.shape, dtype)
    for parameter in parameters:
        if parameter.offload:
            continue  # copied to main memory
        if parameter.sharded.grad is None:
            parameter.sharded.grad = Tensor(parameter.sharded_shape, dtype, output.storage)
