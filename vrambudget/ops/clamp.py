"""Clamping between numbers or scalars on the device, and the checks for infinities.

    x           kept, and the two scalars
    y           like x
    backward    two bools and a result for each element, a zero; one bool for one number

Source: derivatives.yaml (clamp, clamp.Tensor), FunctionsManual.cpp (clamp_backward,
clamp_backward_min_max);
aten/src/ATen/native/TensorCompare.cpp (isinf: abs, then a comparison; isfinite).
"""

from vrambudget.dtypes import bool_
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty, empty_like
from vrambudget.ops.elementwise import iterated_strides


def clamp_to_numbers(x: Tensor, *, both: bool) -> Tensor:
    """Return x between two numbers, or up to one."""
    kept = keep(x, when=x.requires_grad)
    context.operation = "clamp"
    y = empty_like(x)
    shape, strides = y.shape, y.strides

    def backward(dy: Tensor) -> Tensor:
        zero = empty((), dy.dtype)
        inside = [empty(shape, bool_, strides) for _ in range(1 + both)]
        dx = empty(shape, dy.dtype, iterated_strides(shape, (*inside, dy)))
        del inside, zero
        return dx

    return record("clamp", y, inputs=(x,), saved=(kept,), backward=backward)


def is_finite(x: Tensor) -> Tensor:
    """Return torch.isfinite(x): (x == x) * (x.abs() != infinity), the right side first."""
    context.operation = "abs"
    magnitude = empty_like(x)
    context.operation = "ne"
    is_bounded = empty_like(x, bool_)
    context.operation = "eq"
    is_number = empty_like(x, bool_)
    context.operation = "mul"
    both = empty_like(x, bool_)
    del is_number, magnitude, is_bounded
    return both
