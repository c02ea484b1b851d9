"""Layer normalisation and RMS normalisation over the last dimension.

    x           [..., C]   kept; layer_norm under autocast: a float32 copy
    weight      [C]        kept
    bias        [C]        kept
    mean, rstd  [rows]     kept, float32 (rms_norm has no mean)
    y           [..., C]

backward makes dx, then dweight and dbias. With many rows of few features, dweight and
dbias are first summed in parts [parts, C], which takes a second result and a sum's buffers.

Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu (LayerNormBackwardKernelImplInternal,
ConfigureAndLaunchGammaBetaBackwardKernel); layer_norm.cpp (rms_norm_symint); derivatives.yaml
(native_layer_norm, _fused_rms_norm).
Not modelled: layer_norm of an x and a weight of two types (PyTorch refuses it).
"""

from collections.abc import Sequence

from vrambudget.dtypes import DType, float32
from vrambudget.engine.autocast import full_precision, to
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, ShapeError, Tensor, empty, numel
from vrambudget.ops.elementwise import mul, pow_scalar, rsqrt
from vrambudget.ops.reduce import mean_last, sum_to_size
from vrambudget.ops.shape import contiguous

_WARP = 32
_MANY_ROWS = 64 * 1024
_ROWS_PER_PART = 32
_MOST_WARPS = 32768  # parts times warps of features


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return x normalised, times weight, plus bias. Raises ShapeError."""
    # Casts run in the order in which C++ evaluates arguments: from the last.
    bias = None if bias is None else full_precision(bias)
    weight = None if weight is None else full_precision(weight)
    return _normalised("layer_norm", full_precision(x), weight, bias, statistics=2)


def rms_norm(x: Tensor, weight: Tensor | None) -> Tensor:
    """Return x divided by its root mean square, times weight. Raises ShapeError."""
    if weight is not None and weight.dtype is not x.dtype:
        return _composed(x, weight)
    return _normalised("rms_norm", x, weight, None, statistics=1)


def _composed(x: Tensor, weight: Tensor) -> Tensor:
    """Return what rms_norm does, as PyTorch composes it where the weight has another type than x.

    Source: aten/src/ATen/native/layer_norm.cpp (rms_norm_composite).
    """
    wide = to(x, float32) if x.dtype.itemsize < float32.itemsize else x
    squares = pow_scalar(wide)
    scale = rsqrt(mean_last(squares))
    del squares  # a temporary of C++ until the statement ends
    return to(mul(mul(wide, scale), weight), x.dtype)


def _normalised(
    name: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, *, statistics: int
) -> Tensor:
    features = x.shape[-1]
    for parameter in (weight, bias):
        if parameter is not None and parameter.shape != (features,):
            raise ShapeError(f"{name} of {list(x.shape)} by {list(parameter.shape)}")
    kept = [keep(x), keep(weight), keep(bias)]
    context.operation = name
    must_copy = not x.is_contiguous
    copy = empty(x.shape, x.dtype) if must_copy else None
    y = empty(x.shape, x.dtype)
    rows = x.numel // features
    saved = [empty((rows,), float32) for _ in range(statistics)]
    del copy
    kept += [keep(statistic) for statistic in saved]
    shape, dtype, needs_x = x.shape, x.dtype, x.requires_grad
    affine = [p is not None and p.requires_grad for p in (weight, bias)]

    def backward(dy: Tensor) -> tuple[Tensor | None, ...]:
        copy = empty(shape, dtype) if must_copy else None
        return _gradients(dy, dtype, (features,), copy, needs_x=needs_x, affine=affine)

    return record(name, y, inputs=(x, weight, bias), saved=kept, backward=backward)


def gradients(
    x: Tensor,
    dy: Tensor,
    dims: int,
    *,
    needs_x: bool,
    affine: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x and of what it was scaled by, over its last `dims` dimensions."""
    copy = None if x.is_contiguous else empty(x.shape, x.dtype)
    return _gradients(dy, x.dtype, x.shape[-dims:], copy, needs_x=needs_x, affine=affine)


def _gradients(
    dy: Tensor,
    dtype: DType,
    scaled: Shape,
    copy: Tensor | None,
    *,
    needs_x: bool,
    affine: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    features = numel(scaled)
    dx = empty(dy.shape, dtype) if needs_x else None
    dparameters = [empty(scaled, dtype) if needed else None for needed in affine]
    rows_of_dy = contiguous(dy)
    if len(scaled) == 1:
        _sum_in_parts(dy.numel // features, features, dparameters)
    del copy, rows_of_dy
    return dx, *dparameters


def _sum_in_parts(rows: int, features: int, gradients: list[Tensor | None]) -> None:
    """Replace gradients [C] of weight and bias with sums over parts, if C is small for the rows."""
    if rows <= _MANY_ROWS or features // _WARP >= context.platform.multiprocessors // 2:
        return
    parts = min(-(-rows // _ROWS_PER_PART), _MOST_WARPS // -(-features // _WARP))
    partial = [g if g is None else empty((parts, features), g.dtype) for g in gradients]
    for i, part in enumerate(partial):
        if part is not None:
            gradients[i] = sum_to_size(part, (features,))
