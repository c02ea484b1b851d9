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


def view_as_complex(x: Tensor) -> Tensor:
    """[..., 2] in float32 -> [...] in complex64, a view."""
    y = Tensor(x.shape[:-1], complex64, x.storage)
    y.is_view = True
    shape = x.shape

    def backward(dy: Tensor) -> Tensor:
        return _as_real(dy, shape)

    return record("view_as_complex", y, inputs=(x,), backward=backward)


def view_as_real(x: Tensor) -> Tensor:
    """[...] in complex64 -> [..., 2] in float32, a view."""
    y = _as_real(x, (*x.shape, 2))
    shape = x.shape

    def backward(dy: Tensor) -> Tensor:
        dx = Tensor(shape, complex64, dy.storage)
        dx.is_view = True
        return dx

    return record("view_as_real", y, inputs=(x,), backward=backward)


def _as_real(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    y = Tensor(shape, float32, x.storage)
    y.is_view = True
    return y


def rotated_by(x: Tensor, table: Tensor) -> Tensor:
    """Return x times a table that is broadcast to its shape."""
    kept = keep(table, when=x.requires_grad)
    context.operation = "mul"
    y = empty(x.shape, x.dtype)
    shape, table_shape, dtype = x.shape, table.shape, x.dtype

    def backward(_dy: Tensor) -> Tensor:
        conjugate = empty(table_shape, dtype)
        dx = empty(shape, dtype)
        del conjugate
        return dx

    return record("mul", y, inputs=(x,), saved=(kept,), backward=backward)
