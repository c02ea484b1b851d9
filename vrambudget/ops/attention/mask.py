"""Attention masks as the memory-efficient and the math kernel expect them: added to the scores.

    bool mask [B or 1, H or 1, Sq, Sk]    becomes a bias of its shape in q's dtype, at every call
    bias whose rows do not begin at multiples of 8 elements    is copied into rows that do

Source: aten/src/ATen/native/transformers/attention.cpp (convert_boolean_attn_mask,
preprocess_mask, pad_bias).
"""

from vrambudget.dtypes import DType, bool_
from vrambudget.engine.autograd import record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor, empty
from vrambudget.ops.attention.layout import dense_like, pad_last, slice_last

_ALIGNMENT = 8


def additive(mask: Tensor, dtype: DType) -> Tensor:
    """Return a bool mask as zeros and minus infinities; a float mask is a bias already."""
    if mask.dtype is not bool_:
        return mask
    context.operation = "where"
    zero, minus_infinity = empty((), dtype), empty((), dtype)
    bias = dense_like(mask, dtype)
    del minus_infinity, zero
    return bias


def aligned(bias: Tensor, shape: Shape) -> Tensor:
    """Return the bias expanded to `shape`, its rows aligned."""
    strides = bias.actual_strides()
    if strides[-1] != 1 or any(stride % _ALIGNMENT for stride in strides[:-1]):
        length = bias.shape[-1]
        bias = slice_last(pad_last(bias, _ALIGNMENT - length % _ALIGNMENT), length)
    return _expand(bias, shape)


def _expand(x: Tensor, shape: Shape) -> Tensor:
    lead = len(shape) - x.ndim
    have = (1,) * lead + x.shape
    strides = tuple(
        0 if size == 1 and want != 1 else stride
        for size, want, stride in zip(have, shape, (0,) * lead + x.actual_strides(), strict=True)
    )
    expanded = Tensor(shape, x.dtype, x.storage, strides)
    return record("expand", expanded, inputs=(x,), backward=lambda dy: dy)
