"""Cross-entropy and what it keeps.

    cross_entropy(x, target) = nll_loss(log_softmax(x, dtype of x), target)

    x [N, V] -> log-probabilities [N, V] kept by log_softmax; nll_loss keeps its input (the same
    storage, or under autocast a float32 copy), the target and one scalar, total_weight.
    backward: the gradient of nll_loss [N, V], then that of log_softmax [N, V].

    with label smoothing, the sum of log-probabilities beside: its gradient is [N, V], too

Source: aten/src/ATen/native/LossNLL.cpp (cross_entropy_loss, cross_entropy_loss_label_smoothing,
nll_loss_nd_symint), cuda/Loss.cu; autocast_mode.h (nll_loss is on the float32 list,
cross_entropy_loss is on none; sum computes in float32, unless it is given a type).
"""

from vrambudget.dtypes import bool_, float32
from vrambudget.engine.autocast import full_precision
from vrambudget.engine.autograd import Saved, keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import ShapeError, Tensor, empty
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import add, div_by_constant, mul_scalar, neg
from vrambudget.ops.fill import masked_fill_
from vrambudget.ops.reduce import count_true, sum_all, sum_dim, with_partial_sums
from vrambudget.ops.softmax import log_softmax


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss of logits [N, V] for class indices [N]. Raises ShapeError."""
    if x.shape[0] != target.shape[0]:
        raise ShapeError(f"cross_entropy of {list(x.shape)} for targets {list(target.shape)}")
    log_probabilities = log_softmax(x, dtype=x.dtype)
    return nll_loss(log_probabilities, target)  # the caller's frame holds them meanwhile


def smoothed_cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss of logits [N, V] for class indices [N], with label smoothing."""
    log_probabilities = log_softmax(x, dtype=x.dtype)
    loss = nll_loss(log_probabilities, target)
    wide = None if context.autocast is None else float32
    smooth_loss = neg(sum_dim(log_probabilities, 1, dtype=wide))
    ignore_mask = made("eq", target.shape, bool_)
    smooth_loss = masked_fill_(smooth_loss, ignore_mask)
    true_mask = made("bitwise_not", target.shape, bool_)
    count = count_true(true_mask)  # C++ computes the divisor first
    mean = div_by_constant(sum_all(smooth_loss), count)
    del true_mask, count
    return add(mul_scalar(loss), mul_scalar(mean))


def nll_loss(x: Tensor, target: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of log-probabilities [N, V]."""
    x = full_precision(x)
    kept: tuple[Saved, ...] = (
        keep(x, when=x.requires_grad),
        keep(target, when=x.requires_grad),
    )
    context.operation = "nll_loss"
    loss, total_weight = empty((), x.dtype), empty((), x.dtype)
    kept = *kept, keep(total_weight, when=x.requires_grad)
    shape, dtype = x.shape, x.dtype

    def backward(_dy: Tensor) -> Tensor:
        return empty(shape, dtype)

    return record("nll_loss", loss, inputs=(x,), saved=kept, backward=backward)


def mse_loss(x: Tensor, target: Tensor) -> Tensor:
    """Return the mean of squared differences; its storage stays as large as they were.

    Source: aten/src/ATen/native/Loss.cpp (TORCH_META_FUNC(mse_loss)), BinaryOps.cpp.
    """
    x, target = full_precision(x), full_precision(target)
    kept = keep(x, when=x.requires_grad), keep(target, when=x.requires_grad)
    context.operation = "mse_loss"
    whole = empty(x.shape, x.dtype)
    y = Tensor((), x.dtype, whole.storage)
    differences = empty(x.shape, x.dtype)
    with_partial_sums(differences, tuple(range(x.ndim)), x.dtype, accumulator=4)
    del whole, differences
    shape, dtype = x.shape, x.dtype

    def backward(_dy: Tensor) -> Tensor:
        context.operation = "mse_loss_backward"
        return empty(shape, dtype)

    return record("mse_loss", y, inputs=(x,), saved=kept, backward=backward)
