"""DPO's loss of log probabilities, and the metrics that TRL computes beside it.

All of it is small: [B] for the loss, [B, T-1] for entropy, logits and accuracy. It is counted for
what its blocks are to those that live longer.

Source: trl/trainer/dpo_trainer.py (_compute_loss), 1.16;
derivatives.yaml (log_sigmoid, sub).
"""

from functools import partial

from vrambudget.dtypes import bool_, float32, int64
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty_like
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import add_scalar, mul_scalar, neg
from vrambudget.ops.masked import index_mask
from vrambudget.ops.reduce import count_true, mean_all, sum_all, with_partial_sums
from vrambudget.training.fused_head import FusedOutputs, count_valid_labels
from vrambudget.training.loops.run import Run


def logratio(logps: Tensor) -> Tensor:
    """Return logps - ref_logps, both [B]."""
    context.operation = "sub"
    return record("sub", empty_like(logps), inputs=(logps,), backward=lambda dy: dy)


def sigmoid_loss(chosen: Tensor, rejected: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the loss of log ratios [B], and what its variables hold."""
    delta_score = _difference(chosen, rejected)
    per_sequence_loss = neg(_logsigmoid(mul_scalar(delta_score)))
    loss = add_scalar(mul_scalar(mean_all(per_sequence_loss)))
    return loss, (delta_score, per_sequence_loss)


def _difference(a: Tensor, b: Tensor) -> Tensor:
    context.operation = "sub"

    def backward(dy: Tensor) -> tuple[Tensor, Tensor]:
        return dy, empty_like(dy)

    return record("sub", empty_like(a), inputs=(a, b), backward=backward)


def _logsigmoid(x: Tensor) -> Tensor:
    """log_sigmoid keeps its input; its buffer is empty on a GPU."""
    kept = keep(x)
    context.operation = "log_sigmoid"
    return record("log_sigmoid", empty_like(x), inputs=(x,), saved=(kept,), backward=empty_like)


def measured(run: Run, outputs: FusedOutputs, pairs: int, *, trains: bool) -> tuple[object, ...]:
    """Compute the metrics of so many pairs; return what their variables hold."""
    assert outputs.entropy is not None  # noqa: S101 - this trainer asks for all of them
    assert outputs.mean_logits is not None  # noqa: S101
    assert outputs.is_top1 is not None  # noqa: S101
    rows, length = outputs.entropy.shape
    halves = (pairs, length)
    entropy_sum = _entropy_sum(outputs.entropy)
    total_tokens = _total((rows, length))
    entropy_sum = made("sum", (), float32)
    total_tokens = made("sum", (), int64)
    _divided_if_positive()
    if trains:
        gathered = _total((rows, length + 1)), made("sum", (), int64)
        del gathered
    logits = outputs.mean_logits.viewed(halves, None)
    mask = outputs.label_mask.viewed(halves, None)
    _average_logits(run, logits, mask)
    is_completion = made("to_dtype", halves, bool_)
    correct_predictions = made("and", halves, bool_)
    del is_completion
    total_tokens = _total(halves)
    correct_tokens = count_true(correct_predictions)
    total_sum = made("sum", (), int64)
    is_positive = made("gt", (), bool_)
    del is_positive
    correct_sum = made("sum", (), int64)
    accuracy = made("div", (), float32)
    del correct_sum, accuracy
    rewards = _rewards(pairs)
    return entropy_sum, total_tokens, correct_predictions, correct_tokens, total_sum, rewards


def _entropy_sum(entropy: Tensor) -> Tensor:
    product = made("mul", entropy.shape, float32)
    total = sum_all(product)
    del product
    return total


def _total(shape: tuple[int, ...]) -> Tensor:
    """Return the sum of a mask of integers."""
    total = made("sum", (), int64)
    strides = (shape[1] + 1, 1)  # it is the mask of [B, T], without its first column
    mask = Tensor(shape, int64, total.storage, strides)
    with_partial_sums(mask, (0, 1))
    return total


def _divided_if_positive() -> None:
    is_positive = made("gt", (), bool_)
    del is_positive
    made("div", (), float32)  # read back and freed: nobody holds it


def _average_logits(run: Run, logits: Tensor, mask: Tensor) -> None:
    """Sum the logits of the labels that count, of both halves, and read the sums back."""
    pairs, length = mask.shape[0], mask.shape[1] + 1
    chosen = count_valid_labels(run.settings, pairs, length)
    counts = chosen, count_valid_labels(run.settings, 2 * pairs, length) - chosen
    sums: list[Tensor] = []
    for count in counts:
        is_completion = made("to_dtype", mask.shape, bool_)
        values = index_mask(logits, is_completion, count)
        del is_completion
        total = sum_all(values)
        del values
        sums += [total, _total(mask.shape)]
        del total
    for i in range(len(sums)):
        gathered = made("sum", (), sums[i].dtype)
        del gathered
        sums[i] = logits  # rebound to what was read


def _rewards(pairs: int) -> tuple[Tensor, ...]:
    """Rewards, how often the chosen one is higher, by how much; and a mean of each."""
    averaged = partial(made, "mean", (), float32)  # read back and freed: nobody holds it
    rewards = [made("mul", (pairs,), float32) for _ in range(2)]
    averaged()
    averaged()
    is_higher = made("gt", (pairs,), bool_)
    reward_accuracies = made("to_dtype", (pairs,), float32)
    del is_higher
    averaged()
    margins = made("sub", (pairs,), float32)
    for _ in range(3):  # margins, and the log probabilities of both halves
        averaged()
    return (*rewards, reward_accuracies, margins)
