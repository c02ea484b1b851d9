"""Normalisations, softmax and losses."""

from collections.abc import Callable
from typing import Any

from vrambudget.ops import foreach_norm as foreach_norms
from vrambudget.ops import loss, norm
from vrambudget.ops import softmax as softmaxes
from vrambudget.traced.rules.table import on
from vrambudget.traced.tensor import dtype_of

_MATRIX = 2
_NONE = 0  # reduction


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


def _over_last(name: str) -> Callable[..., Any]:
    """Return the rule of an operation over the last dimension, asked for when it is called."""

    def rule(x: Any, dim: Any = None, dtype: Any = None, **_: Any) -> Any:
        if not isinstance(dim, int) or dim % x.ndim != x.ndim - 1 or isinstance(dtype, int):
            return NotImplemented
        return getattr(softmaxes, name)(x, None if dtype is None else dtype_of(dtype))

    return rule


on("softmax")(_over_last("softmax"))
on("log_softmax")(_over_last("log_softmax"))


@on("cross_entropy_loss")
def cross_entropy(  # noqa: PLR0917 - torch's signature
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """Mean or sum of the cross-entropy of logits [N, V] for classes [N]."""
    del ignore_index
    plain = weight is None and reduction != _NONE and not label_smoothing
    if x.ndim != _MATRIX or target.dtype.is_floating_point or not plain:
        return NotImplemented
    return loss.cross_entropy(x, target)
