"""Losses."""

from typing import Any

from vrambudget.ops import loss
from vrambudget.traced.rules.table import on

_MATRIX = 2
_NONE = 0  # reduction


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
