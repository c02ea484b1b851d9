"""Operations that write into a tensor, and masked_fill, in place or not.

    masked_fill(_)   keeps the mask; backward fills the gradient's masked elements: a new tensor
    div_             keeps the divisor, and a copy of what it overwrites
    mul_             keeps the other factor (which requires no gradient here)
    add_             keeps nothing

An in-place operation returns a tensor of the same storage: bind it to the same name.

Source: tools/autograd/derivatives.yaml (masked_fill, div, mul), tools/autograd/gen_variable_type.py
(original_self); FunctionsManual.cpp (div_tensor_other_grad).
"""

from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty_like
from vrambudget.ops.elementwise import broadcast


def masked_fill(x: Tensor, mask: Tensor) -> Tensor:
    """Return x with a number where `mask` (broadcast to x) is True: a new tensor."""
    context.operation = "masked_fill"
    return _recorded(empty_like(x), x, mask)


def masked_fill_(x: Tensor, mask: Tensor) -> Tensor:
    """Return x itself, overwritten with a number where `mask` is True."""
    return _recorded(_same(x), x, mask)


def _recorded(y: Tensor, x: Tensor, mask: Tensor) -> Tensor:
    broadcast(x.shape, mask.shape)
    kept = keep(mask, when=x.requires_grad)
    return record("masked_fill", y, inputs=(x,), saved=(kept,), backward=empty_like)


def div_(a: Tensor, b: Tensor) -> Tensor:
    """Return a, overwritten with a / b."""
    context.operation = "div_"
    needs_a, needs_b = a.requires_grad, b.requires_grad
    overwritten = empty_like(a) if context.grad_enabled and needs_b else None
    kept = keep(b, when=needs_a or needs_b), keep(overwritten)
    shape = broadcast(a.shape, b.shape)

    def backward(dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        db = _divisor_gradient(dy) if needs_b else None  # the engine sums it to b's shape
        da = empty_like(dy) if needs_a else None
        return da, db

    if shape != a.shape:
        raise ValueError(f"div_ of {list(a.shape)} by {list(b.shape)}")
    return record("div", _same(a), inputs=(a, b), saved=kept, backward=backward)


def _divisor_gradient(dy: Tensor) -> Tensor:
    """-dy * ((a / b) / b)."""
    quotient = empty_like(dy)
    again = empty_like(dy)
    negative = empty_like(dy)
    db = empty_like(dy)
    del negative, again, quotient
    return db


def mul_(a: Tensor, factor: Tensor) -> Tensor:
    """Return a, overwritten with a * factor; factor requires no gradient."""
    kept = keep(factor, when=a.requires_grad)
    return record("mul", _same(a), inputs=(a,), saved=(kept,), backward=empty_like)


def mul_number_(a: Tensor) -> Tensor:
    """Return a, overwritten with a times a Python number; backward multiplies too."""
    return record("mul", _same(a), inputs=(a,), backward=empty_like)


def add_(a: Tensor, b: Tensor) -> Tensor:
    """Return a, overwritten with a + b of the same shape."""

    def backward(dy: Tensor) -> tuple[Tensor, Tensor]:
        return dy, dy

    return record("add", _same(a), inputs=(a, b), backward=backward)


def _same(x: Tensor) -> Tensor:
    return Tensor(x.shape, x.dtype, x.storage, x.strides)
