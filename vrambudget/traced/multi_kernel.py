"""Operations that CUDA runs as several kernels, or by others than the meta device does.

    roll           one dimension of a contiguous tensor at a time; without dimensions, of all
                   elements in a row
    log_sigmoid    without the buffer that CPUs keep for backward
    ctc_loss       states [B, T, 2 L + 1] of PyTorch's own kernels, L the longest target

Source: aten/src/ATen/native/cuda/TensorTransformations.cu (roll_cuda), TensorTransformations.h
(roll_common); native/Loss.cpp (binary_cross_entropy_with_logits);
native/cuda/Activation.cpp (log_sigmoid_forward_out_cuda); native/cuda/LossCTC.cu
(ctc_loss_gpu_template, ctc_loss_backward_gpu_template).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

_LARGE = 450  # is_large in ctc_loss_backward_gpu_template


def kernel_by_kernel(name: str, args: Any) -> Callable[[], Any] | None:
    """Return what runs an aten operation as its kernels do, None where it is one kernel."""
    if name == "log_sigmoid_forward":
        return partial(_log_sigmoid, *args)
    if name in {"_ctc_loss", "_ctc_loss_backward"}:
        return partial(ctc_loss if name == "_ctc_loss" else ctc_loss_backward, *args)
    if name != "roll":
        return None
    x, shifts, dims = args[0], args[1], args[2] if len(args) > 2 else ()  # noqa: PLR2004 - its places
    if len(dims) == 1 and x.is_contiguous():
        return None
    return partial(_rolled, x, shifts, dims)


def _rolled(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int]) -> torch.Tensor:
    if not dims:
        return torch.roll(x.contiguous().view(-1), list(shifts), [0]).view(x.shape)
    first = torch.roll(x.contiguous(), [shifts[0]], [dims[0]])
    return _rolled(first, shifts[1:], dims[1:]) if len(dims) > 1 else first


def _log_sigmoid(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), x.new_empty(0)


def ctc_loss(
    scores: torch.Tensor, _targets: Any, _given: Any, lengths: Sequence[int], *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses [B] of scores [T, B, C], and the states that backward reads."""
    copies, states = _ctc_states(scores, lengths)
    losses = scores.new_empty(scores.shape[1])
    del copies
    return losses, states


def ctc_loss_backward(
    _dy: Any, scores: torch.Tensor, _targets: Any, _given: Any, lengths: Sequence[int], *_: Any
) -> torch.Tensor:
    """Return the gradient of scores [T, B, C]; of many it sums over blanks all at once."""
    copies, states = _ctc_states(scores, lengths)
    length, batch, labels = scores.shape
    dx = torch.full_like(scores, -math.inf)
    if 2 * length + 24 * batch // 10 + 2 * labels // 10 > _LARGE:
        sums = torch.logsumexp(scores.new_empty((batch, length, max(lengths) + 1)), 2)
        del sums
    del states, copies
    return dx


def _ctc_states(scores: torch.Tensor, lengths: Sequence[int]) -> tuple[Any, torch.Tensor]:
    """Return lengths and offsets as they are copied to the GPU, then the states [B, T, 2 L + 1]."""
    batch = scores.shape[1]
    copies = [scores.new_empty(batch, dtype=torch.int64) for _ in range(3)]
    return copies, scores.new_empty((batch, len(scores), 2 * max(lengths) + 1))


def _bce_with_logits_backward(function: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    """FunctionsManual.cpp (binary_cross_entropy_with_logits_backward): it writes in place."""
    x, target = function._saved_self, function._saved_target  # noqa: SLF001 - autograd's names
    weight, positive = function._saved_weight, function._saved_pos_weight  # noqa: SLF001
    if positive is None:
        result = x.sigmoid().sub_(target)
    else:
        weighted = positive.mul(target)
        result = weighted.add(1).sub_(target).mul_(x.sigmoid()).sub_(weighted)
    result.mul_(gradient)
    if weight is not None:
        result.mul_(weight)
    return (result.div_(1), *[None] * (len(function.next_functions) - 1))


def formula(function: Any) -> Callable[..., Any]:
    """Return what runs a node of autograd's graph: on the GPU some write where no mode lets them.

    Under a dispatch mode a tensor may be a subclass's (areAnyTensorSubclassLike).
    """
    wants = [following is not None for following, _ in function.next_functions]
    if function.name().startswith("BinaryCrossEntropyWithLogits") and wants == [True, False]:
        return partial(_bce_with_logits_backward, function)
    run: Callable[..., Any] = function
    return run
