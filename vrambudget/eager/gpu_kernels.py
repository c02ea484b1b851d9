"""Operations that a GPU's kernels run otherwise than the fake ones do: what they make, in order.

convolution             in cuDNN's order of memory, with its workspaces (ops.convolution)
embedding's gradient    sorts the indices (ops.embedding), also of bags of them
layer norm              copies what does not lie in rows, sums in parts (ops.norm)
norms of lists          one buffer for all (ops.foreach_norm)
binary cross-entropy    log-sigmoid, the loss of each element, its mean
fused optimizers        write in place
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vrambudget.dtypes import int32, int64
from vrambudget.eager import sparse
from vrambudget.engine.tensor import Tensor, empty, empty_bytes
from vrambudget.ops import convolution as convolutions
from vrambudget.ops import norm
from vrambudget.ops.convolution_kernels import Geometry
from vrambudget.ops.cub import sort_pairs_bytes
from vrambudget.ops.embedding import dense_gradient
from vrambudget.ops.foreach_norm import foreach_norm
from vrambudget.tape.events import Purpose, Storage, Tape
from vrambudget.traced import kernels, orders
from vrambudget.traced.multi_kernel import ctc_loss, ctc_loss_backward, kernel_by_kernel
from vrambudget.traced.tensor import dtype_of

if TYPE_CHECKING:
    from vrambudget.eager.mode import EagerMode

Rule = Callable[..., Any]
"""From the mode, what runs the fake kernel, and the arguments, to the result."""

RULES: dict[Any, Rule] = {}
"""By operation."""

_aten = torch.ops.aten
_NOWHERE = Tape()
_MAX = 2  # of embedding bags' ways: sum, mean, max
_SUPPORTED_NORMS = (1, 2, float("inf"))


def on(*packets: Any) -> Callable[[Rule], Rule]:
    """Let a function be the rule of these operations."""

    def registered(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(packets, rule))
        return rule

    return registered


def _call(mode: EagerMode, x: Any, weight: Any, options: Any) -> Any:
    stride, padding, dilation, transposed, output_padding, groups = options
    dims = weight.dim() - 2
    stride, padding, dilation = (
        tuple(n) * dims if len(n) == 1 else tuple(n) for n in (stride, padding, dilation)
    )
    moves = Geometry(stride, padding, dilation, groups)
    image, filters = (
        Tensor(tuple(v.shape), dtype_of(v.dtype), mode.storage_of(v), tuple(v.stride()))
        for v in (x, weight)  # of one pixel, too, strides suggest an order
    )
    return convolutions.call(
        image, filters, moves, output_padding=tuple(output_padding) if transposed else None
    )


@on(_aten.convolution)
def _convolution(mode: EagerMode, _run: Any, x: Any, weight: Any, _bias: Any, *options: Any) -> Any:
    stride, _, _, transposed, output_padding, _ = options
    if transposed and any(n >= step for n, step in zip(output_padding, stride, strict=False)):
        kernels.unchecked.add("conv_transpose")  # not cuDNN's (ConvUtils.h, use_cudnn)
    return mode.fake_of(_call(mode, x, weight, options).result())


@on(_aten.convolution_backward)
def _convolution_backward(
    mode: EagerMode, _run: Any, dy: Any, x: Any, weight: Any, _bias: Any, *rest: Any
) -> Any:
    *options, wants = rest
    found = _call(mode, x, weight, options).backward(mode.tensor_of(dy), tuple(wants))
    return tuple(None if v is None else mode.fake_of(v) for v in found)


@on(_aten.embedding_dense_backward)
def _embedding_backward(
    mode: EagerMode, _run: Any, dy: Any, indices: Any, rows: int, *_: Any
) -> Any:
    copies = mode.contiguous(indices), mode.contiguous(dy)
    v = dense_gradient(indices.numel(), (rows, dy.shape[-1]), dtype_of(dy.dtype))
    del copies
    return mode.fake_of(v)


def _made(mode: EagerMode, run: Any, *order: int) -> Any:
    """Return the results of a kernel that allocates them in this order."""
    with mode._quiet():
        results = run()
    for number in order:
        mode._note(results[number])
    return results


@on(_aten.native_dropout, _aten.nll_loss2d_forward)
def _second_first(mode: EagerMode, run: Any, *_: Any) -> Any:
    """Make the mask, or the sum of weights, first (cuda/Dropout.cu, dropout_cuda; NLLLoss2d.cu)."""
    return _made(mode, run, 1, 0)


@on(_aten._embedding_bag, _aten._embedding_bag_forward_only)
def _embedding_bag(mode: EagerMode, run: Any, *_: Any, **__: Any) -> Any:
    """Make the result last (cuda/EmbeddingBag.cu, _embedding_bag_cuda)."""
    return _made(mode, run, 2, 1, 0, 3)


@on(_aten._embedding_bag_backward)
def _embedding_bag_backward(mode: EagerMode, run: Any, dy: Any, indices: Any, *rest: Any) -> Any:
    rows, by_frequency, way, is_sparse = rest[4:8]
    if is_sparse and indices.numel():
        return sparse.bag_gradient(mode, dy, indices, *rest)
    if by_frequency:
        kernels.unchecked.add("EmbeddingBag")
    if by_frequency or way == _MAX or not indices.numel():
        return run()
    copy = mode.contiguous(dy)
    shape = rows, dy.shape[1]
    v = dense_gradient(indices.numel(), shape, dtype_of(dy.dtype), of_bags=True)
    del copy
    return mode.fake_of(v)


@on(_aten.logsumexp)
def _logsumexp(mode: EagerMode, _run: Any, x: Any, dims: Any, keepdim: bool = False) -> Any:  # noqa: FBT001, FBT002 - the schema of aten
    """Look for infinite ones among the largest (native/ReduceOps.cpp, logsumexp_out_impl)."""
    with mode:
        largest = x.amax(dims, keepdim=True)
        infinite = largest.abs() == math.inf
        del infinite
        return (x - largest).exp_().sum(dims, keepdim)


@on(_aten._ctc_loss)
def _ctc_loss(mode: EagerMode, _run: Any, scores: Any, targets: Any, *lengths: Any) -> Any:
    with mode:
        return ctc_loss(scores, targets, *_host_lengths(mode, targets, lengths))


@on(_aten._ctc_loss_backward)
def _ctc_loss_backward(mode: EagerMode, _run: Any, dy: Any, *args: Any) -> Any:
    scores, targets, *lengths = args[:4]
    with mode:
        return ctc_loss_backward(dy, scores, targets, *_host_lengths(mode, targets, lengths))


def _host_lengths(mode: EagerMode, targets: Any, lengths: Any) -> tuple[Any, Any]:
    """Return lengths as CTC's kernels take them; of unknown ones a target fills its row."""
    given, wanted = lengths[:2]
    if not isinstance(wanted, list | tuple):
        wanted = [mode.largest(wanted)] if mode.knows(wanted) else targets.shape[1:2]
    return given, wanted


@on(_aten._efficientzerotensor)
def _zeros_of_no_memory(mode: EagerMode, run: Any, *_: Any, **__: Any) -> Any:
    """Make what forward mode AD has for tangents that are zero (native/ZeroTensorFallback.cpp)."""
    with mode._quiet():
        zeros = run()
    storage = zeros.untyped_storage()
    mode._bind(storage, Storage(_NOWHERE, storage.nbytes(), Purpose.TEMPORARIES, "zeros"))
    return zeros


@on(_aten.im2col, _aten.col2im)
def _columns(mode: EagerMode, run: Any, x: Any, *_: Any) -> Any:
    """Make a result as large as x, copy x, enlarge the result (cuda/Im2Col.cu, Col2Im.cu)."""
    with mode:
        began = x.new_empty(x.shape)
    copy = mode.contiguous(x)
    result = _made(mode, run)
    if result.numel() > x.numel():
        mode._note(result)
    else:
        mode._bind(result.untyped_storage(), mode.storage_of(began))
    del began, copy
    return result


@on(_aten.native_layer_norm, _aten._fused_rms_norm)
def _normalised(mode: EagerMode, run: Any, x: Any, *_: Any) -> Any:
    copy = mode.contiguous(x)
    result = run()
    del copy
    return result


@on(_aten.native_layer_norm_backward, _aten._fused_rms_norm_backward)
def _norm_backward(mode: EagerMode, _run: Any, dy: Any, x: Any, shape: Any, *rest: Any) -> Any:
    wants_x, *affine = rest[-1]
    given = mode.tensor_of(x), mode.tensor_of(dy), len(shape)
    found = norm.gradients(*given, needs_x=wants_x, affine=affine)
    return tuple(None if v is None else mode.fake_of(v) for v in found)


@on(_aten._foreach_norm)
def _foreach_norm(mode: EagerMode, run: Any, tensors: Any, p: float = 2, dtype: Any = None) -> Any:
    plain = dtype is None and p in _SUPPORTED_NORMS and len({x.dtype for x in tensors}) == 1
    if not plain:
        return run()
    return [mode.fake_of(v) for v in foreach_norm([mode.tensor_of(x) for x in tensors])]


@on(_aten.log_sigmoid_forward, _aten.roll)
def _multi_kernel(mode: EagerMode, run: Any, *args: Any) -> Any:
    steps = kernel_by_kernel(mode.operation, args)
    if steps is None:
        return run()
    with mode:
        return steps()


@on(
    _aten.fake_quantize_per_tensor_affine_cachemask,
    _aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams,
    _aten.fake_quantize_per_channel_affine_cachemask,
)
def _rounded(mode: EagerMode, _run: Any, x: Any, *_: Any) -> Any:
    """Make what is rounded, and whether each lay in range (FakeQuantPerTensorAffine.cpp)."""
    with mode:
        return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


@on(_aten._fused_moving_avg_obs_fq_helper)
def _observed(mode: EagerMode, run: Any, x: Any, *args: Any) -> Any:
    """Look for the bounds, of each row by a channel, then round (cuda/FusedObsFakeQuant.cu)."""
    _, _, *kept, _, _, _, axis, by_row, _ = (*args, False, False)[:12]
    with mode:
        for known in kept if by_row else ():
            known.resize_(x.shape[axis])
        bounds = torch.empty_like(kept[0]), torch.empty_like(kept[0])
        del bounds
        return _rounded(mode, run, x.contiguous())


@on(_aten.multinomial)
def _multinomial(
    mode: EagerMode,
    _run: Any,
    x: Any,
    draws: int,
    replacement: bool = False,  # noqa: FBT001, FBT002 - the schema of aten
    **_: Any,
) -> Any:
    """Look whether they are probabilities, then take the largest of noisy ones.

    Source: native/Distributions.cpp (multinomial_out).
    """
    with mode:
        result = x.new_empty((*x.shape[:-1], draws), dtype=torch.int64)
        if replacement and draws > 1:  # cuda/MultinomialKernel.cu
            rows, normalised = torch.empty_like(x), torch.empty_like(x)
            normalised.cumsum(-1)
            del rows, normalised
            return result
        valid = (x.max() < float("inf")) & (x.min() >= 0)
        missing = (x.sum(-1) == 0).any() if x.dim() > 1 else x.sum() == 0
        noisy = torch.empty_like(x)
        if draws == 1:
            orders.RULES["argmax"]((noisy, -1), result)
        else:
            values = x.new_empty(result.shape)
            del values
    del valid, missing, noisy
    return result


@on(_aten.randperm)
def _randperm(_mode: EagerMode, run: Any, n: int, *_: Any, out: Any, **__: Any) -> Any:
    """Sort numbers by random keys, of 32 bits where those make two equal ones unlikely.

    Source: native/cuda/Randperm.cu (randperm_out_cuda).
    """
    bits = math.log2(n - (6 * n * n + 1) / (math.log(0.9) * 12)) if n else 0
    numbers = empty((n,), dtype_of(out.dtype))
    keys = [empty((n,), int32 if bits <= 32 else int64) for _ in range(2)]  # noqa: PLR2004 - of int
    buffer = empty_bytes(sort_pairs_bytes(n, passes=-(-math.ceil(bits) // 8)))
    del buffer, keys, numbers
    return run()


@on(_aten._thnn_fused_gru_cell)
def _gru_cell(mode: EagerMode, _run: Any, _x: Any, _gates: Any, hidden: Any, *_: Any) -> Any:
    """Keep five parts for backward (RNN.cu, GRU_WORKSPACE_MULTIPLIER)."""
    with mode:
        kept = hidden.new_empty((len(hidden), 5 * hidden.shape[1]))
        return torch.empty_like(hidden), kept


@on(_aten._thnn_fused_gru_cell_backward)
def _gru_cell_backward(mode: EagerMode, _run: Any, dy: Any, kept: Any, has_bias: bool) -> Any:  # noqa: FBT001
    rows, width = dy.shape
    with mode:
        gates = [kept.new_empty((rows, 3 * width)) for _ in range(2)]
        dx = torch.empty_like(dy)
        return (*gates, dx, *(x.sum(0) if has_bias else None for x in gates))


@on(*(getattr(_aten, f"_fused_{name}_") for name in ("sgd", "adam", "adamw", "adagrad")))
def _in_place(*_: Any, **__: Any) -> None:
    return None
