"""Trainer's LabelSmoother: a loss of its own, on the logits that the model returns.

    logits         [B, T-1, V]   without the last token's (a copy, unless there is one row)
    log_probs      [B, T-1, V]   log_softmax, kept, and its negative, kept by gather
    nll, smoothed  [B, T-1, 1]

backward makes gather's gradient [B, T-1, V] of zeros, adds the sum's expanded one, and negates it.

Source: transformers/trainer_pt_utils.py (LabelSmoother), 5.17; derivatives.yaml (gather, sum).
"""

from vrambudget.dtypes import bool_, float32, int64
from vrambudget.engine.context import made_for
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import add, div_by_constant, mul_scalar, neg
from vrambudget.ops.fill import masked_fill_
from vrambudget.ops.indexing import gather
from vrambudget.ops.reduce import sum_all, sum_dim
from vrambudget.ops.shape import contiguous, slice_dim
from vrambudget.ops.softmax import log_softmax
from vrambudget.tape.events import Purpose


def smoothed_loss(
    logits: Tensor, labels: Tensor, num_items_in_batch: Tensor, *, shift_labels: bool
) -> Tensor:
    """Return the loss of logits [..., V] for labels [...], shifted by one if asked."""
    with made_for(Purpose.LOGITS_AND_LOSS):
        return _smoothed_loss(logits, labels, num_items_in_batch, shift_labels=shift_labels)


def _smoothed_loss(
    logits: Tensor, labels: Tensor, num_items_in_batch: Tensor, *, shift_labels: bool
) -> Tensor:
    if shift_labels:
        logits = contiguous(slice_dim(logits, -2, logits.shape[-2] - 1))
        B, T = labels.shape
        labels = contiguous(labels.viewed((B, T - 1), (T, 1)))
    log_probs = neg(log_softmax(logits))
    labels = labels.viewed((*labels.shape, 1), None)
    padding_mask = made("eq", labels.shape, bool_)
    labels = made("clamp", labels.shape, int64)
    nll_loss = gather(log_probs, labels)
    smoothed = sum_dim(log_probs, -1, keepdim=True, dtype=float32)
    nll_loss = masked_fill_(nll_loss, padding_mask)
    smoothed = masked_fill_(smoothed, padding_mask)
    nll_loss = div_by_constant(sum_all(nll_loss), num_items_in_batch)
    smoothed = div_by_constant(sum_all(smoothed), made("mul", (), int64))
    return add(mul_scalar(nll_loss), mul_scalar(smoothed))
