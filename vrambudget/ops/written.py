"""Copies into a part of a tensor: `x[..., a:b].copy_(source)`, as autograd follows them.

    forward     nothing: it writes where the part lies
    backward    CopySlices: the gradient is copied, as x lies; its part is cloned, which is the
                source's gradient; if what was overwritten wants a gradient, zeros go there

Source: torch/csrc/autograd/functions/tensor.cpp (CopySlices, CopyBackwards).
"""

from vrambudget.engine.autograd import record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty


def copied_into(x: Tensor, source: Tensor) -> Tensor:
    """Return x, which `source` was copied into: a part of it, or an expanded tensor's."""
    shape, strides, dtype = x.shape, x.strides, x.dtype
    part, kind, had_gradient = source.shape, source.dtype, x.requires_grad
    wants_gradient = source.requires_grad

    def backward(dy: Tensor) -> tuple[Tensor, Tensor | None]:
        context.operation = "CopySlices"
        dx = empty(shape, dy.dtype, strides)
        dsource = empty(part, dtype)
        zeros = empty(part, dtype) if had_gradient else None
        cast = empty(part, kind) if wants_gradient and kind is not dtype else dsource
        del zeros, dsource
        return dx, cast

    y = Tensor(x.shape, x.dtype, x.storage, x.strides)
    return record("copy_slices", y, inputs=(x, source), backward=backward)
