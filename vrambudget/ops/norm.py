"""Layer normalisation.

    x           [..., C]   kept; under autocast a float32 copy
    mean, rstd  [rows]     kept, float32
    y           [..., C]

Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu; derivatives.yaml (native_layer_norm).
"""

from vrambudget.engine.autocast import full_precision
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.dtypes import float32
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.ops.shape import contiguous


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return x normalised over its last dimension, times weight, plus bias."""
    x = contiguous(full_precision(x))
    weight = None if weight is None else full_precision(weight)
    bias = None if bias is None else full_precision(bias)
    kept = keep(x), keep(weight)
    context.operation = "layer_norm"
    y = empty(x.shape, x.dtype)
    rows = x.numel // x.shape[-1]
    mean, rstd = empty((rows,), float32), empty((rows,), float32)
    kept = *kept, keep(mean), keep(rstd)
    shape, dtype = x.shape, x.dtype
    needs_x = x.requires_grad
    affine = [p is not None and p.requires_grad for p in (weight, bias)]
    width = x.shape[-1]

    def backward(dy: Tensor) -> tuple[Tensor | None, ...]:
        dx = empty(shape, dtype) if needs_x else None
        dweight, dbias = (empty((width,), dtype) if needed else None for needed in affine)
        return dx, dweight, dbias

    return record("layer_norm", y, inputs=(x, weight, bias), saved=kept, backward=backward)
