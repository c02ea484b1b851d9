"""Operations that write into a tensor, and masked_fill, in place or not.

    masked_fill(_)   keeps the mask; backward fills the gradient's masked elements: a new tensor
    mul_number_      keeps nothing: the factor is a Python number
    add_             keeps nothing

An in-place operation returns a tensor of the same storage: bind it to the same name.

Source: tools/autograd/derivatives.yaml (masked_fill, mul, add).
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
