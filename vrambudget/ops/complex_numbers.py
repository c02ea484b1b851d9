"""Complex numbers as rotary embeddings use them: pairs of float32 seen as one element.

    view_as_complex, view_as_real    share storage
    rotated_by                       x * table: keeps the table; backward multiplies by its
                                     conjugate, which is made anew, for a product reads no flags

Source: tools/autograd/derivatives.yaml (mul, view_as_real); ATen/ConjugateFallback.cpp.
Not modelled: a table that wants a gradient.
"""

from vrambudget.dtypes import complex64, float32
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.ops.elementwise import iterated_strides
from vrambudget.ops.shape import contiguous


def view_as_complex(x: Tensor) -> Tensor:
    """[..., 2] in float32 -> [...] in complex64, a view."""
    y = _as_complex(x)
    return record("view_as_complex", y, inputs=(x,), backward=_as_real)


def view_as_real(x: Tensor) -> Tensor:
    """[...] in complex64 -> [..., 2] in float32, a view; backward makes the gradient contiguous."""

    def backward(dy: Tensor) -> Tensor:
        return _as_complex(contiguous(dy))

    return record("view_as_real", _as_real(x), inputs=(x,), backward=backward)


def _as_complex(x: Tensor) -> Tensor:
    strides = None if x.strides is None else tuple(step // 2 for step in x.strides[:-1])
    y = Tensor(x.shape[:-1], complex64, x.storage, strides)
    y.is_view = True
    return y


def _as_real(x: Tensor) -> Tensor:
    strides = None if x.strides is None else (*(step * 2 for step in x.strides), 1)
    y = Tensor((*x.shape, 2), float32, x.storage, strides)
    y.is_view = True
    return y


def rotated_by(x: Tensor, table: Tensor) -> Tensor:
    """Return x times a table that is broadcast to its shape."""
    kept = keep(table, when=x.requires_grad)
    context.operation = "mul"
    shape, dtype = x.shape, x.dtype
    y = empty(shape, dtype, iterated_strides(shape, (x, table)))
    table_shape = table.shape

    def backward(dy: Tensor) -> Tensor:
        conjugate = empty(table_shape, dtype)
        dx = empty(shape, dtype, iterated_strides(shape, (dy, conjugate)))
        del conjugate
        return dx

    return record("mul", y, inputs=(x,), saved=(kept,), backward=backward)
