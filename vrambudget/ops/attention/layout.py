"""Layouts: where a kernel's tensors lie in memory, and the copies that follow from it.

The fused kernels work on [B, S, H, D] views of the [B, H, S, D] tensors that they are given;
`empty_like` gives a gap-free tensor that keeps the order of dimensions of its model.

Source: c10 and ATen's empty_like; aten/src/ATen/ExpandUtils.cpp (infer_dense_strides).
"""

from dataclasses import dataclass

from vrambudget.dtypes import DType
from vrambudget.engine.autograd import record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor, empty
from vrambudget.strides import strides_in


@dataclass(frozen=True, slots=True)
class Strided:
    """All of a tensor but its storage: what a backward rule may close over."""

    shape: Shape
    strides: Shape
    dtype: DType

    @classmethod
    def of(cls, x: Tensor) -> "Strided":
        """Return the layout of x."""
        return cls(x.shape, x.actual_strides(), x.dtype)

    def empty(self) -> Tensor:
        """Allocate a tensor of this layout, gaps closed."""
        return empty(self.shape, self.dtype, dense_strides(self.shape, self.strides))

    def placeholder(self) -> Tensor:
        """Return a tensor without memory, for one that autograd keeps."""
        return Tensor(self.shape, self.dtype, None, self.strides)  # type: ignore[arg-type]

    def heads_last(self) -> "Strided":
        """Return that of [B, H, S, D] as [B, S, H, D], or the other way round."""
        (B, H, S, D), (b, h, s, d) = self.shape, self.strides
        return Strided((B, S, H, D), (b, s, h, d), self.dtype)

    @property
    def is_contiguous(self) -> bool:
        """Whether elements lie in row-major order without gaps."""
        return self.placeholder().is_contiguous


def heads_last(x: Tensor) -> Tensor:
    """Return [B, H, S, D] as [B, S, H, D], or the other way round: a view unknown to autograd."""
    layout = Strided.of(x).heads_last()
    return Tensor(layout.shape, x.dtype, x.storage, layout.strides)


def contiguous(x: Tensor) -> Tensor:
    """Return x or a contiguous copy, unknown to autograd."""
    return x if x.is_contiguous else empty(x.shape, x.dtype)


def dense_like(x: Tensor, dtype: DType) -> Tensor:
    """Allocate a gap-free tensor with x's order of dimensions."""
    return empty(x.shape, dtype, dense_strides(x.shape, x.actual_strides()))


def dense_strides(shape: Shape, strides: Shape) -> Shape:
    """Return strides without gaps in the order of `strides`; a stride of 0 says nothing."""
    if Tensor(shape, None, None, strides).is_dense:  # type: ignore[arg-type]
        return strides
    order = list(range(len(shape) - 1, -1, -1))  # innermost first
    for start in range(1, len(order)):
        here = start
        for before in range(start - 1, -1, -1):
            inner, outer = order[before], order[here]
            if not strides[inner] or not strides[outer]:
                continue  # ambiguous
            if strides[inner] < strides[outer]:
                break
            if strides[inner] > strides[outer] or shape[inner] > shape[outer]:
                order[before], order[here] = outer, inner
                here = before
    return strides_in(order, shape)


def pad_last(x: Tensor, count: int) -> Tensor:
    """Return a contiguous copy of x with `count` elements more in its last dimension (pad)."""
    context.operation = "pad"
    *lead, last = x.shape
    padded = empty((*lead, last + count), x.dtype)

    def backward(dy: Tensor) -> Tensor:
        return dense_like(_narrow(dy, last), dy.dtype)

    return record("pad", padded, inputs=(x,), backward=backward)


def slice_last(x: Tensor, length: int) -> Tensor:
    """Return a view of the first `length` elements of the last dimension."""
    shape, dtype = x.shape, x.dtype

    def backward(dy: Tensor) -> Tensor:
        del dy
        return empty(shape, dtype)  # zeros, then dy is copied in (slice_backward)

    return record("slice", _narrow(x, length), inputs=(x,), backward=backward)


def _narrow(x: Tensor, length: int) -> Tensor:
    return Tensor((*x.shape[:-1], length), x.dtype, x.storage, x.actual_strides())
