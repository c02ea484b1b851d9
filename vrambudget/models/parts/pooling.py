"""Sentences from their tokens: the mean of those that are no padding.

Source: models/modernbert/modeling_modernbert.py (ModernBertForSequenceClassification.forward).
"""

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import div_by_constant, mul
from vrambudget.ops.reduce import sum_dim, with_partial_sums
from vrambudget.ops.shape import unsqueeze


def mean_of_tokens(hidden_states: Tensor, mask: Tensor) -> Tensor:
    """(hidden_states * mask).sum(1) / mask.sum(1): [B, T, C] and [B, T] -> [B, C]."""
    total = sum_dim(mul(hidden_states, unsqueeze(mask, 2)), 1)
    return div_by_constant(total, _count_of_tokens(mask))


def _count_of_tokens(mask: Tensor) -> Tensor:
    """mask.sum(dim=1, keepdim=True): [B, T] -> int64 [B, 1]; bools are cast first."""
    count = made("sum", (mask.shape[0], 1), int64)
    integers = made("to_dtype", mask.shape, int64) if mask.dtype is bool_ else mask
    with_partial_sums(integers, (1,), accumulator=int64.itemsize)
    return count
