"""New tensors: arange, and the results of integer arithmetic, which saves nothing."""

from vrambudget.dtypes import DType, int64
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor, empty


def arange(n: int) -> Tensor:
    """Return 0 .. n-1 as int64 [n]."""
    return made("arange", (n,), int64)


def made(operation: str, shape: Shape, dtype: DType) -> Tensor:
    """Return a new tensor that autograd does not follow: the result of `operation`."""
    context.operation = operation
    return empty(shape, dtype)


def want_gradient(x: Tensor) -> None:
    """Let a tensor that is no parameter have a gradient of its own."""
    x.requires_grad = True
