"""Tensors taken apart along a dimension, and repeated along one.

    unbind          views; backward stacks their gradients
    repeat_first    a copy; backward sums what its parts got

Source: aten/src/ATen/native/TensorShape.cpp (unbind, repeat); FunctionsManual.cpp (unbind_backward,
repeat_backward).
"""

from vrambudget.engine.autograd import record, record_many
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.errors import TooLargeError
from vrambudget.ops.reduce import sum_over
from vrambudget.ops.shape import reshape
from vrambudget.tape.events import MOST_STORAGES


def unbind(x: Tensor, dim: int) -> list[Tensor]:
    """Return a view of x at each index of `dim`, without that dimension; backward stacks them."""
    dim %= x.ndim
    shape, dtype, strides = x.shape, x.dtype, x.actual_strides()
    if shape[dim] > MOST_STORAGES:
        raise TooLargeError(f"unbind would make {shape[dim]:,} tensors")
    part, rest = shape[:dim] + shape[dim + 1 :], strides[:dim] + strides[dim + 1 :]
    outputs = [x.viewed(part, rest) for _ in range(shape[dim])]

    def backward(*grads: Tensor | None) -> Tensor:
        context.operation = "stack"
        # A part that nobody read gets zeros first (unbind_backward in FunctionsManual.cpp).
        parts = [empty(part, dtype) if g is None else g for g in grads]
        whole = empty(shape, dtype)
        del parts
        return whole

    record_many("unbind", outputs, inputs=(x,), backward=backward)
    return outputs


def repeat_first(x: Tensor, times: int) -> Tensor:
    """Return x.repeat(times, 1, ...): [N, ...] -> [times * N, ...], a copy even once."""
    shape = x.shape
    context.operation = "repeat"
    y = empty((times * shape[0], *shape[1:]), x.dtype)

    def backward(dy: Tensor) -> Tensor:
        parts = reshape(dy, times, *shape)
        return sum_over(parts, (0,), shape) if times > 1 else reshape(dy, *shape)

    return record("repeat", y, inputs=(x,), backward=backward)
