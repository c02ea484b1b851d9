"""Offload of stages 1 and 2: a rank's gradients leave for main memory as float32.

    GPU    a buffer as large as the largest parameter; of each of the rank's gradients its norm,
           and for a moment a float64 copy of the rank's elements, then a float32 one
    host   masters, their gradients, the optimizer's states, a 16-bit copy of the masters, a buffer
           as large as the largest parameter; where micro-batches add up, gradients as they are

Gradients larger than the bucket are cloned before they are reduced (since 0.19).

Source: deepspeed/runtime/zero/stage_1_and_2.py (__init__, copy_grads_in_partition,
set_norm_for_param_grad_in_gpu, async_inplace_copy_grad_to_fp32_buffer_from_gpu,
async_accumulate_grad_in_cpu_via_gpu, complete_grad_norm_calculation_for_cpu_offload).
"""

from __future__ import annotations

from collections.abc import Sequence

from vrambudget.dtypes import float32, uint8
from vrambudget.engine.context import context, made_for
from vrambudget.engine.tensor import Parameter, Tensor, empty_like
from vrambudget.ops.creation import made
from vrambudget.parallel.deepspeed.config import ZeroConfig
from vrambudget.parallel.deepspeed.norms import has_inf_or_nan, norm_of_part
from vrambudget.parallel.deepspeed.partition import Partition
from vrambudget.parallel.host import held_bytes
from vrambudget.tape.events import Purpose


class GradientOffload:
    """What a rank does with its own gradients."""

    def __init__(self, partitions: Sequence[Partition], config: ZeroConfig) -> None:
        self.config = config
        self.largest = max(p.numel for part in partitions for p in part.parameters)
        self._elements = {
            id(p): n
            for part in partitions
            for p, n in zip(part.own, part.own_elements(), strict=True)
        }
        self._numel = {id(p): p.numel for part in partitions for p in part.own}
        self._norms: dict[int, Tensor] = {}
        with made_for(Purpose.GRADIENTS):
            self._buffer = made("temp_grad_buffer", (self.largest,), config.dtype)

    def send(self, p: Parameter) -> None:
        """Send a gradient's part of this rank, at the end of a step's last backward."""
        assert p.grad is not None  # noqa: S101 - it is in the bucket
        own = Tensor((self._elements[id(p)],), p.dtype, p.grad.storage)
        self._norms[id(p)] = norm_of_part(own)
        overflow = has_inf_or_nan(p.grad)
        del overflow
        if p.dtype is not float32:
            context.operation = "to_dtype"
            copy = empty_like(own, float32)
            del copy
        p.grad = None

    def norm(self) -> None:
        """Add up the norms, which are read back (complete_grad_norm_calculation...)."""
        if self.config.looks_for_overflow:
            overflow = made("to_device", (1,), uint8)
            del overflow
        made("to_device", (1,), float32)

    def clear(self) -> None:
        """Forget the norms (reset_cpu_buffers)."""
        self._norms.clear()

    def host_bytes(self, sizes: Sequence[int], states: int) -> int:
        """Return what lies in main memory; `sizes`: elements of the rank's part of each group."""
        itemsize = self.config.dtype.itemsize
        buffers = [n * each for n in sizes for each in (4, itemsize, 4)]
        buffers.append(self.largest * itemsize)
        if self.config.grad_accum > 1:
            buffers += [n * itemsize for n in self._numel.values()]
        return held_bytes(buffers, pinned=self.config.pin_memory) + sum(sizes) * 4 * states
