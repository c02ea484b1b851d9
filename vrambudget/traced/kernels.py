"""What CUDA kernels allocate besides their results, by aten operation.

    pointwise, views, copies    nothing
    reductions                  partial sums (ops.reduce_buffers)
    matrix products             cuBLAS' workspace, and copies (traced.products)
    softmax' backward           grad * output
    group norm                  a, b [N, C]; in backward ds, db, c1 [N, C] and c2, c3 [N, groups]
    upsampling                  an input that lies in neither order is copied
    embedding's backward        the sort's buffers

An operation that stands nowhere here is counted by its result alone, and `unchecked` names it.

Source: aten/src/ATen/native/cuda (Reduce.cuh, SoftMax.cu, Blas.cpp, Embedding.cu, ScanKernels.cpp,
group_norm_kernel.cu: GroupNormKernelImplInternal, GroupNormBackwardKernelImplInternal;
UpSampleNearest2d.cu: upsample_nearest2d_out_cuda_template);
aten's own tags say which operations are pointwise.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from vrambudget.dtypes import DType, float32, float64, int64
from vrambudget.engine.tensor import Tensor, empty, empty_bytes
from vrambudget.ops.channels_last import is_like_channels_last, is_packed
from vrambudget.ops.cub import inclusive_sum_bytes
from vrambudget.ops.indexing import accumulating_buffers
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.traced import distances, orders
from vrambudget.traced.counted import dtype_of
from vrambudget.traced.examined import EXAMINED
from vrambudget.traced.products import PRODUCTS, batched_product, product

WITHOUT_RESULT = {"index_put_", "_index_put_impl_"}
"""Operations that write into an input and yet allocate."""

_NOTHING = {
    *("arange", "empty", "empty_like", "empty_strided", "full", "full_like", "new_empty"),
    *(
        "new_empty_strided",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "scalar_tensor",
    ),
    *(
        "zeros",
        "zeros_like",
        "eye",
        "linspace",
        "rand",
        "randn",
        "rand_like",
        "randn_like",
        "randint",
    ),
    *("bernoulli", "bernoulli_", "normal_", "uniform_", "lift_fresh_copy"),
    *("clone", "_to_copy", "cat", "stack", "repeat", "roll", "flip", "tril", "triu", "copy"),
    *("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad1d"),
    *("slice_backward", "select_backward", "diagonal_backward", "unfold_backward"),
    *("slice_scatter", "select_scatter", "as_strided_scatter", "as_strided_copy"),
    *("gather", "index", "index_select", "scatter", "scatter_add", "index_copy", "index_fill"),
    *("embedding", "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d"),
    *("avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"),
    *("upsample_bilinear2d", "upsample_bicubic2d", "upsample_nearest1d"),
    *("upsample_nearest2d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward"),
    *("_log_softmax", "_log_softmax_backward_data", "_softmax", "nll_loss_forward"),
    *("nll_loss_backward", "glu", "glu_backward", "col2im", "pixel_shuffle", "polar"),
    *("complex", "view_as_complex", "view_as_real", "grid_sampler_2d", "where", "masked_fill"),
    *("mse_loss_backward", "index_put", "_index_put_impl", "unfold"),
    *("floor_divide", "softplus_backward", "histc", "gelu_backward", "silu_backward"),
    *("expand_copy", "split_with_sizes_copy", "fill", "one_hot", "_cdist_forward"),
    *(
        "_unsafe_view",
        "_pdist_forward",
        "_thnn_fused_lstm_cell",
        "_thnn_fused_gru_cell",
        "_is_all_true",
    ),
}
_NORMS = {"linalg_vector_norm", "norm"}
_PLACES = {"argmax", "argmin"}
_REDUCTIONS = {*_PLACES, "sum", "mean", "amax", "amin", "any", "all", "prod", *_NORMS}

unchecked: set[str] = set()
"""Operations of the model that was followed last that were counted by their results alone."""


def not_modelled() -> Iterator[str]:
    """Yield what was counted by its result alone, as a report says it."""
    if unchecked:
        yield f"what the kernels of {', '.join(sorted(unchecked))} allocate besides their results"


def result_bytes(name: str, args: Any, result: Any) -> int | None:
    """Return how large a result's storage is where its shape does not say.

    A loss of differences is made as large as they are, then resized to the one number that stays
    in it (aten/src/ATen/native/Loss.cpp, TORCH_META_FUNC(mse_loss), smooth_l1_loss). What
    unfold and fold return begins as large as their input and never shrinks
    (native/cuda/Im2Col.cu, Col2Im.cu).
    """
    if name in _COLUMNS:
        return int(max(args[0].numel(), result.numel()) * result.element_size())
    if name not in _LOSSES or _reduction(args) == _NO_REDUCTION:
        return None
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    nbytes: int = math.prod(shape) * args[0].element_size()
    return nbytes


_COLUMNS = {"im2col", "col2im"}
_LOSSES = {"mse_loss", "smooth_l1_loss"}
_NO_REDUCTION, _MEAN = 0, 1


def _reduction(args: Any) -> int:
    return int(args[2]) if len(args) > 2 else _MEAN  # noqa: PLR2004 - its place in the schema


def _loss(args: Any, result: Any) -> None:
    """Make the differences, then reduce them."""
    if _reduction(args) == _NO_REDUCTION:
        return
    shape = tuple(torch.broadcast_shapes(args[0].shape, args[1].shape))
    differences = empty(shape, _kind(result))
    with_partial_sums(differences, tuple(range(len(shape))), _kind(result), accumulator=4)
    del differences


def temporaries(func: Any, name: str, args: Any, result: Any) -> None:
    """Allocate and free what the kernels of one operation need besides its result."""
    rule = _RULES.get(name)
    if rule is not None:
        rule(args, result)
    elif name in orders.RULES:
        if not orders.RULES[name](args, result):
            unchecked.add(name)
    elif name == "pow" and not isinstance(args[0], torch.Tensor):
        empty_bytes(float64.itemsize)  # the number that is raised, on the device; freed at once
    elif name in _REDUCTIONS:
        _reduced((args[0], *args[2:]) if name in _NORMS else args, result)  # args[1] is the order
    elif name in PRODUCTS:
        product(name, args)
    elif not _allocates_no_more(func, name):
        unchecked.add(name)


def knows(func: Any, name: str) -> bool:
    """Whether a rule says what an operation's kernels need, or a table that they need nothing."""
    rules = (_RULES, orders.RULES, _REDUCTIONS, PRODUCTS)
    return any(name in table for table in rules) or _allocates_no_more(func, name)


def _allocates_no_more(func: Any, name: str) -> bool:
    """Whether kernels need nothing but their results; those for lists are pointwise, but norms."""
    if torch.Tag.pointwise in func.tags or func.is_view or name.rstrip("_") in _NOTHING | EXAMINED:
        return True
    return name.startswith("_foreach_") and name != "_foreach_norm"


def _reduced(args: Any, result: Any) -> None:
    x = args[0]
    dims = args[1] if len(args) > 1 and isinstance(args[1], list | tuple | int) else ()
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    size = 1 if result.dtype is torch.bool else max(4, result.element_size())
    if result.dtype is torch.int64 and x.dtype is not torch.int64:  # counted as integers
        integers = empty(tuple(x.shape), int64)
        with_partial_sums(integers, dims or tuple(range(x.dim())), accumulator=size)
        del integers
        return
    with_partial_sums(
        _layout(x),
        dims or tuple(range(x.dim())),
        dtype_of(result.dtype),
        accumulator=size,
    )


def _layout(meta: torch.Tensor) -> Tensor:
    no_storage: Any = None  # never read
    return Tensor(tuple(meta.shape), dtype_of(meta.dtype), no_storage, tuple(meta.stride()))


def _softmax_backward(args: Any, result: Any) -> None:
    del result
    product = empty(tuple(args[0].shape), _kind(args[0]))
    del product


def _running_sum(args: Any, result: Any) -> None:
    cast = None if args[0].dtype is result.dtype else empty(tuple(result.shape), _kind(result))
    if result.numel() == result.shape[args[1]]:  # a tensor that is one row goes through CUB
        empty_bytes(inclusive_sum_bytes(result.numel(), result.element_size()))
    del cast


def _index_put(args: Any, result: Any) -> None:
    x, indices, values = args[:3]
    accumulates = len(args) > 3 and args[3]  # noqa: PLR2004 - its place in the schema
    given = [index for index in indices if index is not None]
    del result
    if accumulates and given and all(index.dtype is not torch.bool for index in given):
        places = 1
        for size, index in zip(x.shape, indices, strict=False):
            places *= 1 if index is None else size
        counts = tuple(index.numel() for index in given)
        accumulating_buffers(places, counts, _layout(values))


def _kind(meta: torch.Tensor) -> DType:
    return dtype_of(meta.dtype)


def _columns(args: Any, result: Any) -> None:
    """Resize the result, which began as large as the input, while both are there."""
    if result.numel() > args[0].numel():
        began = empty(tuple(args[0].shape), _kind(args[0]))
        del began


def _batch_norm_backward(args: Any, result: Any) -> None:
    del result
    if not args[7] or args[2] is None:  # in eval mode, or without a weight
        unchecked.add("native_batch_norm_backward")


def _nothing(args: Any, result: Any) -> None:
    """Leave it at the result: a row of up to 4096 values is sorted in place (TensorTopK.cpp)."""
    del args, result


def _group_norm(args: Any, result: Any) -> None:
    """Make the factors that the statistics and the weight come to: not for images of one pixel."""
    x, weight, bias, rows, channels, pixels = args[:6]
    del result
    if pixels > 1 and (weight is not None or bias is not None):
        factors = _float32_rows(x, 2, rows, channels)
        del factors


def _group_norm_backward(args: Any, result: Any) -> None:
    x, weight, (rows, channels, pixels, groups) = args[1], args[4], args[5:9]
    sums = _float32_rows(x, 2, rows, channels)
    if result[0] is not None:
        factors = _float32_rows(x, 2, rows, groups)
        if pixels > 1 and weight is not None:
            factors += _float32_rows(x, 1, rows, channels)
        del factors
    del sums


def _float32_rows(x: torch.Tensor, count: int, rows: int, columns: int) -> list[Tensor]:
    """Return that many tensors [rows, columns], of x's type, or float32 for 16-bit ones."""
    kind = float32 if x.element_size() < float32.itemsize else _kind(x)
    return [empty((rows, columns), kind) for _ in range(count)]


def _upsample(args: Any, result: Any) -> None:
    """Copy an image that lies in neither order, or in channels last but has few channels."""
    del result
    x = args[0]
    if x.dim() != _IMAGE or x.is_contiguous():
        return
    shape, strides = tuple(x.shape), tuple(x.stride())
    is_last = is_like_channels_last(shape, strides) and shape[1] >= _CHANNELS_TO_GAIN
    if not (is_last and is_packed(shape, strides, channels_last=True)):
        copied = empty(shape, _kind(x))
        del copied


_IMAGE = 4  # dimensions of [N, C, H, W]
_CHANNELS_TO_GAIN = 4  # from here on channels last is the quicker way

_RULES: dict[str, Callable[[Any, Any], None]] = {
    "_softmax_backward_data": _softmax_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "upsample_nearest2d": _upsample,
    "_upsample_nearest_exact2d": _upsample,
    **distances.RULES,
    "bmm": batched_product,
    "cumsum": _running_sum,
    "index_put": _index_put,
    "native_batch_norm_backward": _batch_norm_backward,
    "im2col": _columns,
    "topk": _nothing,
    "mse_loss": _loss,
    "smooth_l1_loss": _loss,
    "index_put_": _index_put,
    "_index_put_impl_": _index_put,
}
