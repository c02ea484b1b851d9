"""The losses of transformers' models (loss/loss_utils.py) and what they do to the logits."""

from vrambudget.dtypes import float32, int64
from vrambudget.engine.autocast import to
from vrambudget.engine.context import made_for
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import div_by_constant
from vrambudget.ops.loss import cross_entropy
from vrambudget.ops.shape import contiguous, narrowed, open_slices, view
from vrambudget.tape.events import Purpose


def last_tokens(hidden_states: Tensor, count: int) -> Tensor:
    """hidden_states[:, slice_indices, :]: the last `count` of [B, T, C], or all for 0."""
    if not count:
        return open_slices(hidden_states, 3)
    return narrowed(hidden_states, 1, min(count, hidden_states.shape[1]))


def causal_lm_loss(
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int,
    num_items_in_batch: Tensor | None = None,
) -> Tensor | None:
    """ForCausalLMLoss: logits [B, T, V] as float32 against labels [B, T] shifted by one."""
    if labels is None:
        return None
    with made_for(Purpose.LOGITS_AND_LOSS):
        logits = to(logits, float32)
        B, T = labels.shape
        labels = made("pad", (B, T + 1), int64)
        # labels[..., 1:].contiguous(): of a single row the slice is contiguous as it is
        shift_labels = contiguous(labels.viewed((B, T), (T + 1, 1)))
        logits = view(logits, -1, vocab_size)
        shift_labels = view(shift_labels, -1)
        loss = cross_entropy(logits, shift_labels)
        # fixed_cross_entropy: the mean, or the sum by a count that the caller has on the device
        return loss if num_items_in_batch is None else div_by_constant(loss, num_items_in_batch)


def class_loss(logits: Tensor, labels: Tensor | None) -> Tensor | None:
    """CrossEntropyLoss of logits [..., K], in the dtype they come in, for labels [...]."""
    if labels is None:
        return None
    with made_for(Purpose.LOGITS_AND_LOSS):
        logits = view(logits, -1, logits.shape[-1])
        return cross_entropy(logits, view(labels, -1))
