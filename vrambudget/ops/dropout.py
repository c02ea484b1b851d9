"""Dropout: a new tensor and a mask of one byte per element, which is kept.

With p = 0 or outside training it returns its input.

Source: aten/src/ATen/native/Dropout.cpp (is_fused_kernel_acceptable), cuda/Dropout.cu
(dropout_cuda); derivatives.yaml (native_dropout).
"""

from vrambudget.dtypes import bool_
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty_like


def dropout(x: Tensor, p: float, *, training: bool = True) -> Tensor:
    """Return x with a share p of its elements zeroed."""
    if not training or p == 0.0:
        return x
    context.operation = "dropout"
    mask = empty_like(x, bool_)
    y = empty_like(x)
    kept = keep(mask, when=x.requires_grad)
    return record("dropout", y, inputs=(x,), saved=(kept,), backward=empty_like)
