"""Normalisations and softmax."""

from typing import Any

from vrambudget.ops import foreach_norm as foreach_norms
from vrambudget.ops import norm
from vrambudget.ops import softmax as softmaxes
from vrambudget.traced.rules.table import on
from vrambudget.traced.tensor import dtype_of


@on("layer_norm")
def layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, *_: Any, **__: Any) -> Any:
    """Normalise the last dimension."""
    return norm.layer_norm(x, weight, bias) if len(shape) == 1 else NotImplemented


@on("rms_norm")
def rms_norm(x: Any, shape: Any, weight: Any = None, *_: Any, **__: Any) -> Any:
    """Divide by the root mean square of the last dimension."""
    if len(shape) != 1 or (weight is not None and weight.dtype is not x.dtype):
        return NotImplemented
    return norm.rms_norm(x, weight)


@on("_foreach_norm")
def foreach_norm(tensors: Any, p: float = 2, dtype: Any = None) -> Any:
    """Norms of several tensors at once."""
    plain = dtype is None and p in (1, 2, float("inf")) and len({x.dtype for x in tensors}) == 1
    return foreach_norms.foreach_norm(tensors) if plain else NotImplemented


@on("softmax")
def softmax(x: Any, dim: Any = None, dtype: Any = None, **options: Any) -> Any:
    """Softmax over the last dimension."""
    if not isinstance(dim, int) or dim % x.ndim != x.ndim - 1 or isinstance(dtype, int):
        return NotImplemented
    dtype = dtype or options.get("dtype")
    return softmaxes.softmax(x, None if dtype is None else dtype_of(dtype))


@on("log_softmax")
def log_softmax(x: Any, dim: Any = None, dtype: Any = None, **options: Any) -> Any:
    """Log-softmax over the last dimension."""
    if not isinstance(dim, int) or dim % x.ndim != x.ndim - 1 or isinstance(dtype, int):
        return NotImplemented
    dtype = dtype or options.get("dtype")
    return softmaxes.log_softmax(x, None if dtype is None else dtype_of(dtype))
