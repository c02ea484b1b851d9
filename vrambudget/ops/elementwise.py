"""Pointwise operations: add, mul, scale, power and the activation functions.

    add, mul by a number     keep nothing
    mul                      keeps each operand that the other's gradient needs
    gelu, silu, pow, erf     keep their input
    tanh, relu, sigmoid      keep their output

The result has the operands' wider type and broadcast shape; the engine sums and casts gradients
back.

Source: tools/autograd/derivatives.yaml. Gradients are made in the order of its generated code,
which is alphabetical by argument: `other` before `self`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from vrambudget.dtypes import promote
from vrambudget.engine.autocast import full_precision
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, ShapeError, Tensor, empty, empty_like
from vrambudget.ops.channels_last import is_packed, packed_strides
from vrambudget.strides import strides_in

_IMAGE = 4  # dimensions of [B, C, H, W]


def add(a: Tensor, b: Tensor) -> Tensor:
    """Return a + b; both get the same gradient."""
    y = _result("add", a, b)

    def backward(dy: Tensor) -> tuple[Tensor, Tensor]:
        return dy, dy

    return record("add", y, inputs=(a, b), backward=backward)


def add_scalar(a: Tensor) -> Tensor:
    """Return a plus a Python number."""
    context.operation = "add"
    return record("add", _by_number(a), inputs=(a,), backward=lambda dy: dy)


def sub(a: Tensor, b: Tensor) -> Tensor:
    """Return a - b; b gets the gradient negated."""
    y = _result("sub", a, b)
    needs_b = b.requires_grad

    def backward(dy: Tensor) -> tuple[Tensor, Tensor | None]:
        return dy, empty_like(dy) if needs_b else None

    return record("sub", y, inputs=(a, b), backward=backward)


def mul(a: Tensor, b: Tensor) -> Tensor:
    """Return a * b."""
    kept = keep(b, when=a.requires_grad), keep(a, when=b.requires_grad)
    y = _result("mul", a, b)
    needs_a, needs_b = a.requires_grad, b.requires_grad
    a_like, b_like = _layout(a), _layout(b)

    def backward(dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        db = _result("mul_backward", dy, a_like) if needs_b else None
        da = _result("mul_backward", dy, b_like) if needs_a else None
        return da, db

    return record("mul", y, inputs=(a, b), saved=kept, backward=backward)


def where_scalar(condition: Tensor, a: Tensor, number: Tensor | None = None) -> Tensor:
    """Return a where a bool condition holds, elsewhere a number.

    A Python number becomes a scalar on the device first; give `number` if it is one.
    """
    kept = keep(condition, when=a.requires_grad)
    layout = _layout(condition)
    y = _where(layout, a, number)

    def backward(dy: Tensor) -> Tensor:
        return _where(layout, dy)

    return record("where", y, inputs=(a,), saved=(kept,), backward=backward)


def _where(condition: Tensor, a: Tensor, number: Tensor | None = None) -> Tensor:
    context.operation = "where"
    number = empty((), a.dtype) if number is None else number
    shape = broadcast(condition.shape, a.shape)
    y = empty(shape, a.dtype, iterated_strides(shape, (condition, a)))
    del number
    return y


def div_by_constant(a: Tensor, divisor: Tensor) -> Tensor:
    """Return a divided by a tensor that broadcasts to it and wants no gradient; it is kept."""
    kept = keep(divisor, when=a.requires_grad)
    context.operation = "div"
    return record("div", empty_like(a), inputs=(a,), saved=(kept,), backward=empty_like)


def mul_scalar(a: Tensor) -> Tensor:
    """Return a times a Python number (also a / number); backward multiplies too."""
    context.operation = "mul"
    return record("mul", _by_number(a), inputs=(a,), backward=_by_number)


def pow_scalar(a: Tensor) -> Tensor:
    """Return a ** number: float32 under autocast; backward makes two temporaries."""
    a = full_precision(a)
    kept = keep(a, when=a.requires_grad)
    context.operation = "pow"
    y = empty_like(a)

    def backward(dy: Tensor) -> Tensor:
        power = empty_like(dy)  # self.pow(exponent - 1)
        scaled = empty_like(dy)  # * exponent
        da = empty_like(dy)
        del scaled, power
        return da

    return record("pow", y, inputs=(a,), saved=(kept,), backward=backward)


def rsqrt(a: Tensor) -> Tensor:
    """Return 1 / sqrt(a): float32 under autocast; keeps its output; backward as that of a power."""
    a = full_precision(a)
    context.operation = "rsqrt"
    y = empty_like(a)
    kept = keep(y, when=a.requires_grad)

    def backward(dy: Tensor) -> Tensor:
        cubed = empty_like(dy)  # result.pow(3)
        scaled = empty_like(dy)  # -0.5 * grad
        da = empty_like(dy)
        del scaled, cubed
        return da

    return record("rsqrt", y, inputs=(a,), saved=(kept,), backward=backward)


def neg(a: Tensor) -> Tensor:
    """Return -a."""
    context.operation = "neg"
    return record("neg", empty_like(a), inputs=(a,), backward=empty_like)


def tanh(a: Tensor) -> Tensor:
    """Return the hyperbolic tangent of a."""
    return _keeps_output("tanh", a)


def sigmoid(a: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-a))."""
    return _keeps_output("sigmoid", a)


def relu(a: Tensor) -> Tensor:
    """Return the larger of a and 0."""
    return _keeps_output("relu", a)


def gelu(a: Tensor) -> Tensor:
    """Return GELU of a, exact or by tanh, in one kernel."""
    return _keeps_input("gelu", a)


def silu(a: Tensor) -> Tensor:
    """Return a * sigmoid(a)."""
    return _keeps_input("silu", a)


def gelu_new(a: Tensor) -> Tensor:
    """Return GELU as transformers' NewGELUActivation composes it (activations.py).

    0.5 * a * (1 + tanh(c * (a + 0.044715 * a ** 3)))
    """
    half = mul_scalar(a)
    return mul(half, add_scalar(tanh(mul_scalar(add(a, mul_scalar(pow_scalar(a)))))))


def gelu_fast(a: Tensor) -> Tensor:
    """Return GELU as transformers' FastGELUActivation composes it (activations.py).

    0.5 * a * (1 + tanh(a * c * (1 + 0.044715 * a * a)))
    """
    half = mul_scalar(a)
    return mul(half, add_scalar(tanh(mul(mul_scalar(a), add_scalar(mul(mul_scalar(a), a))))))


def relu2(a: Tensor) -> Tensor:
    """Return relu(a) squared as transformers' ReLUSquaredActivation composes it (activations.py).

    torch.square is a power to autocast, so float32 there.
    """
    return pow_scalar(relu(a))


Activation = Literal[
    "gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "silu", "swish"
]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_fast": gelu_fast,
    "gelu_new": gelu_new,
    "gelu_pytorch_tanh": gelu,
    "relu": relu,
    "relu2": relu2,
    "silu": silu,
    "swish": silu,
}
"""Activation functions by the names of transformers' ACT2FN."""


def _keeps_input(name: str, a: Tensor) -> Tensor:
    kept = keep(a, when=a.requires_grad)
    context.operation = name
    y = _pointwise(a)
    return record(name, y, inputs=(a,), saved=(kept,), backward=_pointwise)


def _keeps_output(name: str, a: Tensor) -> Tensor:
    context.operation = name
    y = _pointwise(a)
    kept = keep(y, when=a.requires_grad)
    return record(name, y, inputs=(a,), saved=(kept,), backward=_pointwise)


def _pointwise(a: Tensor) -> Tensor:
    return empty(a.shape, a.dtype, iterated_strides(a.shape, (a,)))


def _by_number(a: Tensor) -> Tensor:
    """Allocate the result for a tensor and a number, which is an operand without dimensions."""
    return empty(a.shape, a.dtype, iterated_strides(a.shape, (a,), with_number=True))


def _result(name: str, a: Tensor, b: Tensor) -> Tensor:
    context.operation = name
    shape = broadcast(a.shape, b.shape)
    dtype = promote(a.dtype, b.dtype)
    if bool(a.shape) != bool(b.shape):  # a scalar does not widen what has dimensions
        dtype = a.dtype if a.shape else b.dtype
    return empty(shape, dtype, iterated_strides(shape, (a, b)))


def _layout(x: Tensor) -> Tensor:
    """Return x's shape, dtype and strides without its storage."""
    no_storage: Any = None  # never read
    return Tensor(x.shape, x.dtype, no_storage, x.strides)


def iterated_strides(
    shape: Shape, operands: Sequence[Tensor], *, with_number: bool = False
) -> Shape | None:
    """Return the strides of a pointwise result; None is contiguous.

    Operands of one shape that all lie in one order keep it; else the first operand that decides
    the order of two dimensions does. A dimension of 1 has a stride, too, which decides.

    Source: TensorIterator.cpp (compute_fast_setup_type, reorder_dimensions).
    """
    if all(x.strides is None for x in operands):
        return None
    if not with_number and all(x.shape == shape for x in operands):
        if all(x.is_contiguous for x in operands):
            return None
        strides = [x.actual_strides() for x in operands]
        if len(shape) == _IMAGE and all(is_packed(shape, s, channels_last=True) for s in strides):
            return packed_strides(shape)
        if len({*strides}) == 1 and operands[0].is_dense:
            return strides[0]
    return _reordered(shape, [_padded(x, shape) for x in operands])


def _padded(x: Tensor, shape: Shape) -> Shape:
    """Return strides by the result's dimensions, 0 where x is repeated."""
    lead = len(shape) - x.ndim
    sizes = zip(x.shape, shape[lead:], x.actual_strides(), strict=True)
    return (0,) * lead + tuple(0 if own != size else step for own, size, step in sizes)


def _reordered(shape: Shape, operands: Sequence[Shape]) -> Shape | None:
    def comes_before(inner: int, outer: int) -> int:
        for strides in operands:
            a, b = strides[inner], strides[outer]
            if a == 0 or b == 0:
                continue
            if a != b:
                return -1 if a < b else 1
            if shape[inner] > shape[outer]:
                return 1
        return 0

    order = list(reversed(range(len(shape))))  # innermost first
    for i in range(1, len(order)):
        last = i
        for j in reversed(range(i)):
            comparison = comes_before(order[j], order[last])
            if comparison > 0:
                order[j], order[last] = order[last], order[j]
                last = j
            elif comparison < 0:
                break
    return None if order == sorted(order, reverse=True) else strides_in(order, shape)


def broadcast(a: Shape, b: Shape) -> Shape:
    """Return the shape of a + b. Raises ShapeError if there is none."""
    if a == b:
        return a
    if len(a) < len(b):
        a, b = b, a
    lead = len(a) - len(b)
    shape = list(a[:lead])
    for have, other in zip(a[lead:], b, strict=True):
        if have != other and 1 not in (have, other):
            raise ShapeError(f"{list(a)} and {list(b)} do not broadcast")
        shape.append(other if have == 1 else have)
    return tuple(shape)
