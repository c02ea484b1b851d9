"""Products with bitsandbytes' 4-bit weights in a step: by the packed weight, or by a copy of it.

Source: bitsandbytes 0.50.2: backends/cuda/ops.py (gemm_4bit, _dequant_linear_fallback),
functional.py (QuantState).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from vrambudget.eager.gpu_kernels import on
from vrambudget.engine.context import context
from vrambudget.ops.four_bit_kernels import reads_packed
from vrambudget.traced.tensor import dtype_of

if TYPE_CHECKING:
    from vrambudget.eager.mode import EagerMode


@on("bitsandbytes::gemm_4bit")
def _product(  # noqa: PLR0917 - the schema of bitsandbytes
    mode: EagerMode,
    _run: Any,
    x: Any,
    _packed: Any,
    shape: Any,
    _absmax: Any,
    _block: int,
    _kind: str,
    bias: Any = None,
    absmax_8bit: Any = None,
    absmax_code: Any = None,  # noqa: ARG001
    absmax_offset: Any = None,
) -> Any:
    outputs, inputs = shape
    gpu = context.platform.compute_capability, context.platform.multiprocessors
    with mode:
        if reads_packed(x.numel() // inputs, outputs, inputs, dtype_of(x.dtype), gpu):
            compact = x.contiguous()
            y = compact.new_empty((*x.shape[:-1], outputs))
            del compact
            return y
        if absmax_8bit is not None:
            in_floats = torch.empty_like(absmax_8bit, dtype=torch.float32)
            absmax_8bit = in_floats + absmax_offset
        return torch.nn.functional.linear(x, x.new_empty(shape), bias)


def scales_of(weight: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield what a 4-bit weight has beside its codes: scales, tables and an offset.

    The table that the first double quantisation brings stays, too (functional.name2qmap).
    """
    state = getattr(weight, "quant_state", None)
    if getattr(state, "nested", False):
        yield from sys.modules["bitsandbytes.functional"].name2qmap.values()
    while state is not None:
        yield from (x for x in vars(state).values() if isinstance(x, torch.Tensor))
        state = getattr(state, "state2", None)
