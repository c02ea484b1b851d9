"""loss_parallel: cross-entropy of logits that every rank has a part of, [N, V / T].

    log_softmax   the ranks' maxima and sums are reduced, [N, 1]; exp and two differences [N, V / T]
    nll_loss      the ranks' own targets are looked up, the rest masked; a few tensors [N]
    backward      that of both at once, in nll_loss: the gradient, exp and their sum [N, V / T]

Source: torch/distributed/tensor/parallel/loss.py (_log_softmax, _nll_loss_forward,
_nll_loss_and_log_softmax_backward).
Not modelled: class weights.
"""

from vrambudget.dtypes import bool_, float32, int64
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import ShapeError, Tensor, empty
from vrambudget.ops.creation import made
from vrambudget.ops.reduce import count_true, with_partial_sums
from vrambudget.parallel.tensor.collectives import all_reduce
from vrambudget.parallel.tensor.styles import masked_ids


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss of logits [N, V / T] in float32 for class indices [N]."""
    if x.shape[0] != target.shape[0] or x.dtype is not float32:
        raise ShapeError(f"cross_entropy of {x} for targets {list(target.shape)}")
    log_probabilities = _log_softmax(x)
    return _nll_loss(log_probabilities, target)


def _log_softmax(x: Tensor) -> Tensor:
    y = _log_softmax_of(x)
    kept = keep(y, when=x.requires_grad)
    # Its backward changes nothing: that of nll_loss did it already.
    return record("log_softmax", y, inputs=(x,), saved=(kept,), backward=lambda dy: dy)


def _log_softmax_of(x: Tensor) -> Tensor:
    rows = (x.shape[0], 1)
    largest = made("amax", rows, x.dtype)
    with_partial_sums(x, (-1,))
    x_max = all_reduce(largest)
    del largest
    shifted = made("sub", x.shape, x.dtype)
    exponentials = made("exp", x.shape, x.dtype)
    context.operation = "sum"
    own_sum = empty(rows, x.dtype)
    with_partial_sums(exponentials, (-1,))
    del exponentials
    total = all_reduce(own_sum)
    del own_sum
    logarithm = made("log", rows, x.dtype)
    y = made("sub", x.shape, x.dtype)
    del shifted, logarithm, total, x_max
    return y


def _nll_loss(x: Tensor, target: Tensor) -> Tensor:
    loss, total_weight = _nll_loss_of(x, target)
    kept = (
        keep(x, when=x.requires_grad),
        keep(target, when=x.requires_grad),
        keep(total_weight, when=x.requires_grad),
    )
    shape = x.shape

    def backward(dy: Tensor) -> Tensor:
        del dy
        return _gradient(shape)

    return record("nll_loss", loss, inputs=(x,), saved=kept, backward=backward)


def _nll_loss_of(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    rows = target.shape
    safe_target = _not_ignored(rows, int64, "where")
    mask, own_target = masked_ids(target)
    result_partial = made("gather", rows, x.dtype)
    del mask
    result_reduced = all_reduce(result_partial)
    negative = made("neg", rows, x.dtype)
    result = _not_ignored(rows, x.dtype, "where")
    del negative
    is_kept = made("ne", rows, bool_)
    count = count_true(is_kept)
    del is_kept
    total_weight = made("to_copy", (), x.dtype)
    del count
    context.operation = "sum"
    total = empty((), x.dtype)
    with_partial_sums(result, (0,))
    loss = made("div", (), x.dtype)
    del total, result, own_target, safe_target, result_partial, result_reduced
    return loss, total_weight


def _not_ignored(shape: tuple[int, ...], dtype: object, operation: str) -> Tensor:
    """torch.where(target != ignore_index, ..., 0): the number becomes a scalar on the device."""
    is_kept = made("ne", shape, bool_)
    number = made("scalar", (), dtype)  # type: ignore[arg-type]
    y = made(operation, shape, dtype)  # type: ignore[arg-type]
    del number, is_kept
    return y


def _gradient(shape: tuple[int, ...]) -> Tensor:
    """_nll_loss_and_log_softmax_backward: [N, V / T]."""
    rows = (shape[0],)
    mean = made("div", (), float32)
    safe_target = _not_ignored(rows, int64, "where")
    gradient = made("zeros_like", shape, float32)
    mask, own_target = masked_ids(safe_target)
    as_float = made("to_copy", rows, float32)
    update = made("sub", rows, float32)
    del as_float
    places = made("arange", rows, int64)
    scale = _not_ignored(rows, float32, "where")
    del mean
    exponentials = made("exp", shape, float32)
    summed = made("add", shape, float32)
    del exponentials
    context.operation = "mul"
    result = empty(shape, float32)
    del summed, scale, places, update, gradient, mask, own_target, safe_target
    return result
