"""Softmax and log-softmax: the output is kept, not the input; in PyTorch 1.10 the input, too.

Under autocast both run in float32 unless the caller names a type.

Source: aten/src/ATen/native/SoftMax.cpp, cuda/SoftMax.cu; autocast_mode.h (fp32_set_opt_dtype);
derivatives.yaml (_softmax, _log_softmax), which gave backward the input's type from 1.11 on and
the input itself before: generated/Functions.h of 1.10.0 (SoftmaxBackward0.self_).
"""

from vrambudget.dtypes import DType, float16, float32
from vrambudget.engine.autocast import to
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty, empty_like
from vrambudget.engine.versions import torch_since
from vrambudget.ops.shape import contiguous


def softmax(x: Tensor, dtype: DType | None = None) -> Tensor:
    """Return softmax over the last dimension, computed and returned as `dtype` if given."""
    return _softmax("softmax", x, dtype)


def log_softmax(x: Tensor, dtype: DType | None = None) -> Tensor:
    """Return log-softmax over the last dimension."""
    return _softmax("log_softmax", x, dtype)


def _softmax(name: str, x: Tensor, dtype: DType | None) -> Tensor:
    if dtype is None and context.autocast is not None and x.dtype.is_floating_point:
        dtype = float32
    target = dtype or x.dtype
    source = x.dtype
    fused = source is float16 and target is float32  # half_to_float: no float32 copy of x
    if not fused:
        x = to(x, target)
    x = contiguous(x)
    context.operation = name
    y = empty(x.shape, target)
    kept = keep(y, when=x.requires_grad)
    old = None if torch_since(2, 6) else keep(x, when=x.requires_grad)

    def backward(dy: Tensor) -> Tensor:
        dx = empty_like(dy, source if fused else target)
        if name == "softmax":  # softmax_backward_cuda_out makes dy * y first
            product = empty_like(dy)
            del product
        return dx

    return record(name, y, inputs=(x,), saved=(kept, old), backward=backward)
