"""Offload of stage 3: gradients' parts go to main memory, by way of the GPU once more.

    GPU    of each part a copy of what lies in main memory; after a step's last backward its norm,
           by way of a float64 copy, and a float32 copy
    host   masters, their gradients, the optimizer's states, the parts as they are

Source: deepspeed/runtime/zero/stage3.py (partition_grads, _offload_grad_partition_at_boundary,
_constant_buffered_norm2, complete_grad_norm_calculation_for_cpu_offload, _create_fp32_partitions).
"""

from __future__ import annotations

from collections.abc import Sequence

from vrambudget.dtypes import float32, float64
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.creation import made
from vrambudget.parallel.deepspeed.config import ZeroConfig
from vrambudget.parallel.deepspeed.norms import mask_nan_or_inf, norm_of_part
from vrambudget.parallel.deepspeed.partition_parameters import ZeroParameter


class HostGradients:
    """What a rank does with its parts of the gradients."""

    def __init__(self, config: ZeroConfig) -> None:
        self.config = config
        self._norms: dict[int, Tensor] = {}
        self._is_first = True  # of a step's micro-batches

    def move(self, reduced: Sequence[ZeroParameter], *, is_boundary: bool) -> None:
        """Move parts to main memory, and free the gradients one by one."""
        grad_buffer: Tensor | None = None
        cuda_grad_buffer: Tensor | None = None
        for p in reduced:
            part = p.own_numel()
            if part:
                grad_buffer = None
                on_gpu = made("to_device", (part,), self.config.dtype)
                grad_buffer = on_gpu
                if not self._is_first:
                    cuda_grad_buffer = on_gpu
                del on_gpu
                if is_boundary:
                    self._send(p, grad_buffer)
            release(p)
        del grad_buffer, cuda_grad_buffer

    def _send(self, p: ZeroParameter, gradient: Tensor) -> None:
        norm = norm_of_part(gradient)
        squared = made("pow", (), float64)
        del norm
        self._norms[p.ds_id] = made("pow", (), float64)
        del squared
        if self.config.dtype is not float32:
            made("to_dtype", gradient.shape, float32)

    def backward_is_over(self) -> None:
        """Note that the next micro-batch is not a step's first."""
        self._is_first = False

    def norm(self, parameters: Sequence[ZeroParameter]) -> None:
        """Add up the norms of parameters, and send the sum, which is read back."""
        total: Tensor | None = None
        for p in parameters:
            if p.ds_id in self._norms:
                squared = made("pow", (), float64)
                total = made("add", (), float64)
                del squared
        on_gpu = made("to_device", (1,), float32)
        root = made("pow", (), float32)
        mask_nan_or_inf()
        del total, on_gpu, root

    def clear(self) -> None:
        """Forget the norms (reset_cpu_buffers); a step begins."""
        self._norms.clear()
        self._is_first = True


def release(p: ZeroParameter) -> None:
    """Let go of a gradient, which work on this stream may still read."""
    assert p.parameter.grad is not None  # noqa: S101 - it is in the bucket
    p.parameter.grad.storage.record_stream(context.stream)
    p.parameter.grad = None
