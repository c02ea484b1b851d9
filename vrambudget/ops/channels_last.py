"""Images whose channels lie innermost in memory: [N, C, H, W] in the order N, H, W, C.

    strides like it     what tensors "suggest" to the kernels that they meet, a guess for ambiguous
                        ones: channels of one pixel are taken as contiguous
    packed in it        no copy is needed; sizes of 1 may have any stride

Volumes [N, C, D, H, W] likewise.

Source: c10/core/MemoryFormat.h (is_channels_last_strides_2d_s4, get_channels_last_strides_2d) and
TensorImpl.cpp (_compute_channels_last_contiguous_2d).
"""

from vrambudget.engine.tensor import Shape
from vrambudget.strides import strides_in


def is_like_channels_last(shape: Shape, strides: Shape) -> bool:
    """Whether a tensor suggests channels last."""
    if strides[1] == 0:
        return False
    least = 0
    for dim in _inside_out(len(shape)):
        if shape[dim] == 0 or strides[dim] < least:
            return False
        if dim == 0 and least == strides[1]:  # [N, 1, 1, 1] and the like
            return False
        least = strides[dim] * max(1, shape[dim])
    return True


def is_packed(shape: Shape, strides: Shape, *, channels_last: bool) -> bool:
    """Whether elements lie in that order without gaps."""
    order = _inside_out(len(shape)) if channels_last else range(len(shape) - 1, -1, -1)
    expected = 1
    for dim in order:
        if shape[dim] != 1:
            if strides[dim] != expected:
                return False
            expected *= shape[dim]
    return True


def packed_strides(shape: Shape) -> Shape:
    """Return the strides of a tensor that is packed in it."""
    return strides_in(_inside_out(len(shape)), shape)


def _inside_out(dims: int) -> tuple[int, ...]:
    return (1, *range(dims - 1, 1, -1), 0)
