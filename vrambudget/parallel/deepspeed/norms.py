"""Norms of gradients, looks for overflow, and the factor that gradients are scaled by: scalars.

    norm        of each gradient, as float64: a copy of it; stacked, squared, added up, the root
    overflow    fp16 alone: each gradient as float32, what of it is not a number or infinite
    factor      1 / (clip * scale)

Source: deepspeed/runtime/zero/stage_1_and_2.py (get_grad_norm_direct, scaled_global_norm,
_has_inf_or_nan, unscale_and_clip_grads); runtime/utils.py (mask_nan_or_inf_with_val_inplace).
"""

from collections.abc import Sequence

from vrambudget.dtypes import DType, bool_, float32, float64, uint8
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.clamp import is_finite
from vrambudget.ops.creation import made
from vrambudget.ops.reduce import with_partial_sums


def norm_of_part(gradient: Tensor) -> Tensor:
    """Return a gradient's norm as float64, of a copy as float64."""
    copy = made("to_dtype", gradient.shape, float64)
    norm = made("linalg_vector_norm", (), float64)
    with_partial_sums(copy, tuple(range(copy.ndim)), float64, accumulator=float64.itemsize)
    return norm


def group_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of a group's gradients over all ranks (get_grad_norm_direct)."""
    all_norms = [norm_of_part(x) for x in gradients]
    total = _sum_of_squares(all_norms, "square")
    reduced = made("to_dtype", (), float32)
    del total
    root = made("pow", (), float32)
    del reduced
    mask_nan_or_inf()
    return root


def _sum_of_squares(norms: Sequence[Tensor], squares: str) -> Tensor:
    stacked = made("stack", (len(norms),), float64)
    squared = made(squares, stacked.shape, float64)
    del stacked
    total = made("sum", (), float64)
    with_partial_sums(squared, (0,), float64, accumulator=float64.itemsize)
    return total


def mask_nan_or_inf() -> None:
    """Look whether a norm is a number: mask_nan_or_inf_with_val_inplace."""
    _nan_or_inf(float32)


def _nan_or_inf(dtype: DType) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    size = made("abs", (), dtype)
    is_infinite = made("eq", (), bool_)
    del size
    is_nan = made("ne", (), bool_)
    either = made("logical_or", (), bool_)
    return is_infinite, is_nan, either, made("tensor", (), float32)


def norm_of_norms(norms: Sequence[Tensor], *, screened: bool) -> Tensor:
    """Return the norm of all groups' norms, of their type.

    `screened`: infinity where one of them is none (combine_grad_norm_groups, since 0.19).
    """
    if not screened:
        return _norm_of_stacked(norms)
    dtype = norms[0].dtype
    stacked = made("stack", (len(norms),), dtype)
    either = is_invalid(stacked)
    invalid = made("any", (), bool_)
    del either
    combined = made("linalg_vector_norm", (), dtype)
    with_partial_sums(stacked, (0,), dtype, accumulator=dtype.itemsize)
    infinity = made("full_like", (), dtype)
    found = made("where", (), dtype)
    del infinity, combined, invalid, stacked
    either = is_invalid(found)  # is_invalid_grad_norm, before the step
    invalid = made("any", (), bool_)
    del either, invalid
    return found


def is_invalid(norms: Tensor) -> Tensor:
    """Return which norms are no number, infinite or negative: ~isfinite(norms) | (norms < 0)."""
    finite = is_finite(norms)
    infinite = made("bitwise_not", norms.shape, bool_)
    del finite
    negative = made("lt", norms.shape, bool_)
    either = made("bitwise_or", norms.shape, bool_)
    del infinite, negative
    return either


def _norm_of_stacked(norms: Sequence[Tensor]) -> Tensor:
    dtype = norms[0].dtype
    stacked = made("stack", (len(norms),), dtype)
    norm = made("linalg_vector_norm", (), dtype)
    with_partial_sums(stacked, (0,), dtype, accumulator=dtype.itemsize)
    return norm


def look_for_overflow(gradients: Sequence[Tensor], *, by_extremes: bool) -> None:
    """Look at all gradients, one after another (has_overflow_partitioned_grads_serial)."""
    invalid_grad_count = made("zeros", (1,), float32)
    for gradient in gradients:
        count = has_inf_or_nan(gradient) if by_extremes else _has_inf_or_nan(gradient)
        del count
    overflow = made("bool", (1,), bool_)
    del invalid_grad_count
    overflow_gpu = made("byte", (1,), uint8)
    del overflow_gpu, overflow


def has_inf_or_nan(x: Tensor) -> Tensor:
    """Test the largest and the smallest element: a few scalars (since 0.19)."""
    found = list[Tensor]()
    for name in ("amax", "amin"):
        extreme = made(name, (), x.dtype)
        with_partial_sums(x, tuple(range(x.ndim)), x.dtype, accumulator=x.dtype.itemsize)
        found.append(is_finite(extreme))
        del extreme
    both = made("logical_and", (), bool_)
    found.clear()
    neither = made("logical_not", (), bool_)
    del both
    return neither


def _has_inf_or_nan(x: Tensor) -> Tensor:
    float_x = x if x.dtype is float32 else made("float", x.shape, float32)
    nan = made("ne", x.shape, bool_)
    size = made("abs", x.shape, float32)
    inf = made("eq", x.shape, bool_)
    del size
    inf_or_nan = made("logical_or", x.shape, bool_)
    as_float = made("float", x.shape, float32)
    most = made("max", (), float32)
    with_partial_sums(as_float, tuple(range(x.ndim)), float32)
    del as_float, inf_or_nan, inf, nan, float_x
    return most


def joined_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of gradients, in float64 (stage 3's get_grad_norm_direct)."""
    grad_norms = [norm_of_part(x) for x in gradients]
    total = _sum_of_squares(grad_norms, "pow")
    norm = made("pow", (), float64)
    is_infinite, is_nan, either, err = _nan_or_inf(float64)
    as_float64 = made("to_dtype", (), float64)
    masked = made("where", (), float64)
    del total, norm, is_infinite, is_nan, either, err, as_float64
    return masked


def scale_and_clip(dtype: DType, *, clips: bool) -> None:
    """Scale gradients in place; `clips`: by a tensor of the norm's type: a few scalars."""
    if not clips:
        return
    quotient = made("div", (), dtype)
    raised = made("add", (), dtype)
    del quotient
    clip = made("div", (), dtype)
    del raised
    clamped = made("clamp", (), dtype)
    del clip
    combined_scale = made("mul", (), dtype)
    reciprocal = made("reciprocal", (), dtype)
    factor = made("mul", (), dtype)
    del reciprocal, factor
    del combined_scale, clamped
