"""Pointwise calls: sums, products, powers, activations, casts."""

from collections.abc import Callable
from typing import Any

import torch

from vrambudget.dtypes import complex64
from vrambudget.engine.autocast import to
from vrambudget.engine.tensor import Tensor
from vrambudget.ops import elementwise
from vrambudget.ops.complex_numbers import rotated_by
from vrambudget.ops.dropout import dropout
from vrambudget.ops.reduce import mean_last
from vrambudget.traced.rules.table import on
from vrambudget.traced.tensor import GPU, dtype_of

_NUMBER = (int, float)


def _floats(*operands: Any) -> bool:
    return all(isinstance(x, Tensor) and x.dtype.is_floating_point for x in operands)


def _scaled(a: Any, b: Any) -> bool:
    return _floats(a) and isinstance(b, _NUMBER) and not isinstance(b, bool)


@on("add", "__add__", "__radd__")
def add(a: Any, b: Any, *, alpha: float = 1) -> Any:
    """Add two tensors, or a number."""
    if alpha != 1:
        return NotImplemented
    if _floats(a, b):
        return elementwise.add(a, b)
    if _scaled(b, a):
        a, b = b, a
    return elementwise.add_scalar(a) if _scaled(a, b) else NotImplemented


@on("__sub__")
def sub(a: Any, b: Any) -> Any:
    """Subtract a number."""
    return elementwise.add_scalar(a) if _scaled(a, b) else NotImplemented


@on("mul", "multiply", "__mul__", "__rmul__")
def mul(a: Any, b: Any) -> Any:
    """Multiply two tensors, or by a number."""
    if _floats(a, b):
        return elementwise.mul(a, b)
    if _is_rotated(a, b):
        return rotated_by(a, b)
    if _scaled(b, a):
        a, b = b, a
    return elementwise.mul_scalar(a) if _scaled(a, b) else NotImplemented


def _is_rotated(a: Any, b: Any) -> bool:
    if not all(isinstance(x, Tensor) and x.dtype is complex64 for x in (a, b)):
        return False
    return not b.requires_grad and torch.broadcast_shapes(a.shape, b.shape) == a.shape


@on("__truediv__", "div", "true_divide")
def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """Divide by a number."""
    is_plain = rounding_mode is None and _scaled(a, b)
    return elementwise.mul_scalar(a) if is_plain else NotImplemented


@on("pow", "__pow__")
def power(a: Any, exponent: Any) -> Any:
    """Raise to a power that is a number."""
    if not _scaled(a, exponent) or exponent in (0, 1):
        return NotImplemented
    return elementwise.pow_scalar(a)


def _of_floats(name: str) -> Callable[[Any], Any]:
    """Return a rule that asks for its operation when it is called: a recording has its own."""
    return lambda a: getattr(elementwise, name)(a) if _floats(a) else NotImplemented


on("rsqrt")(_of_floats("rsqrt"))
on("neg", "negative", "__neg__")(_of_floats("neg"))
on("tanh")(_of_floats("tanh"))


@on("gelu")
def gelu(a: Any, *, approximate: str = "none") -> Any:
    """GELU, exact or by tanh."""
    del approximate
    return elementwise.gelu(a)


@on("silu")
def silu(a: Any, inplace: bool = False) -> Any:  # noqa: FBT001, FBT002 - torch's signature
    """Multiply by the sigmoid of itself."""
    return NotImplemented if inplace else elementwise.silu(a)


@on("relu")
def relu(a: Any, inplace: bool = False) -> Any:  # noqa: FBT001, FBT002 - torch's signature
    """Larger of a and 0."""
    return NotImplemented if inplace else elementwise.relu(a)


@on("dropout")
def drop(a: Any, p: float = 0.5, training: bool = True, inplace: bool = False, **_: Any) -> Any:  # noqa: FBT001, FBT002
    """Zero a share p of the elements."""
    if inplace or p == 1:
        return NotImplemented
    return dropout(a, p, training=training)


@on("mean")
def mean(a: Any, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:  # noqa: FBT001, FBT002
    """Mean over the last dimension, which stays."""
    dim = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
    last = isinstance(dim, int) and dim in (-1, a.ndim - 1)
    if not (last and keepdim and _floats(a)) or options:
        return NotImplemented
    return mean_last(a)


@on("to")
def convert(x: Any, *args: Any, dtype: Any = None, device: Any = None, **options: Any) -> Any:
    """Cast; what is on the GPU already moves nowhere."""
    for given in args:
        if isinstance(given, torch.dtype):
            dtype = given
        elif isinstance(given, Tensor):
            dtype = given.dtype
        elif isinstance(given, str | torch.device):
            device = given
    if options.get("copy") or options.get("memory_format") or not isinstance(x, Tensor):
        return NotImplemented
    if device is not None and torch.device(device).type not in (GPU.type, "meta"):
        return NotImplemented
    if dtype is None:
        return x
    return _cast(x, dtype if not isinstance(dtype, torch.dtype) else dtype_of(dtype))


def _cast(x: Tensor, dtype: Any) -> Any:
    both = x.dtype.is_floating_point and dtype.is_floating_point
    return to(x, dtype) if both or x.dtype is dtype else NotImplemented


@on("float")
def as_float(x: Any) -> Any:
    """Cast to float32."""
    return _cast(x, dtype_of(torch.float32))


@on("type_as")
def type_as(x: Any, other: Any) -> Any:
    """Cast to another's type; what is on the CPU moves, too."""
    if not (isinstance(x, Tensor) and isinstance(other, Tensor)):
        return NotImplemented
    return _cast(x, other.dtype)
