"""What kernels allocate besides their results, on layouts; `traced.kernels` has the sources.

A layout is (shape, type, strides), as a program has an operand of a call by the general rule.
"""

from collections.abc import Callable
from typing import Any

from vrambudget.dtypes import DType, bool_, float32, float64, int64
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_bytes, numel
from vrambudget.ops.channels_last import is_like_channels_last, is_packed
from vrambudget.ops.cub import inclusive_sum_bytes
from vrambudget.ops.indexing import accumulating_buffers
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.ops.sampling import sort_buffers
from vrambudget.ops.workspaces import bmm_workspace, cublas_workspace

Lying = tuple[Shape, DType, Shape | None]
_ACCUMULATES = 3  # its place among index_put's arguments


def _tensor(x: Lying) -> Tensor:
    no_storage: Any = None  # never read
    return Tensor(x[0], x[1], no_storage, x[2])


def _reduced(args: Any, result: Lying) -> None:
    layout = _tensor(args[0])
    dims = tuple(args[1]) or tuple(range(layout.ndim))
    size = 1 if result[1] is bool_ else max(4, result[1].itemsize)
    if result[1] is int64 and layout.dtype is not int64:  # counted as integers
        integers = empty(layout.shape, int64)
        with_partial_sums(integers, dims, accumulator=size)
        del integers
        return
    with_partial_sums(layout, dims, result[1], accumulator=size)


def _softmax_backward(args: Any, _result: Lying) -> None:
    product = empty(args[0][0], args[0][1])
    del product


def _batched_product(args: Any, _result: Lying) -> None:
    bmm_workspace(args[0][0][2])


def _running_sum(args: Any, result: Lying) -> None:
    cast = None if args[0][1] is result[1] else empty(result[0], result[1])
    if numel(result[0]) == result[0][args[1]]:
        empty_bytes(inclusive_sum_bytes(numel(result[0]), result[1].itemsize))
    del cast


def _index_put(args: Any, _result: Lying) -> None:
    x, indices, values = args[:3]
    given = [index for index in indices if index is not None]
    accumulates = len(args) > _ACCUMULATES and args[_ACCUMULATES]
    if accumulates and given and all(index[1] is not bool_ for index in given):
        places = 1
        for size, index in zip(x[0], indices, strict=False):
            places *= 1 if index is None else size
        accumulating_buffers(places, tuple(numel(i[0]) for i in given), _tensor(values))


def _sort(args: Any, _result: Lying) -> None:
    sort_buffers(args[0][0], args[0][1])


def _loss(args: Any, result: Lying) -> None:
    if len(args) > 2 and args[2] == 0:  # noqa: PLR2004 - no reduction
        return
    a, b = args[0][0], args[1][0]
    most = max(len(a), len(b))
    pairs = zip((1,) * (most - len(a)) + a, (1,) * (most - len(b)) + b, strict=True)
    differences = empty(tuple(max(pair) for pair in pairs), result[1])
    with_partial_sums(differences, tuple(range(most)), result[1], accumulator=4)
    del differences


def _raised(_args: Any, _result: Lying) -> None:
    empty_bytes(float64.itemsize)


def _product(args: Any, _result: Lying) -> None:
    cublas_workspace(epilogue=args[0])


def _columns(args: Any, result: Lying) -> None:
    if numel(result[0]) > numel(args[0][0]):
        began = empty(args[0][0], args[0][1])
        del began


def _group_norm(args: Any, _result: Any) -> None:
    x, weight, bias, rows, channels, pixels = args[:6]
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


def _float32_rows(x: Lying, count: int, rows: int, columns: int) -> list[Tensor]:
    kind = float32 if x[1].itemsize < float32.itemsize else x[1]
    return [empty((rows, columns), kind) for _ in range(count)]


def _upsample(args: Any, _result: Lying) -> None:
    shape, dtype, strides = args[0]
    if len(shape) != _IMAGE or strides is None or _tensor(args[0]).is_contiguous:
        return
    is_last = is_like_channels_last(shape, strides) and shape[1] >= _CHANNELS_TO_GAIN
    if not (is_last and is_packed(shape, strides, channels_last=True)):
        copied = empty(shape, dtype)
        del copied


_IMAGE = 4  # dimensions of [N, C, H, W]
_CHANNELS_TO_GAIN = 4  # from here on channels last is the quicker way


def _nothing(_args: Any, _result: Lying) -> None:
    """Leave it at the result."""


KERNELS: dict[str, Callable[[Any, Any], None]] = {
    "reduced": _reduced,
    "_softmax_backward_data": _softmax_backward,
    "bmm": _batched_product,
    "cumsum": _running_sum,
    "index_put": _index_put,
    "index_put_": _index_put,
    "_index_put_impl_": _index_put,
    "sort": _sort,
    "topk": _nothing,
    "mse_loss": _loss,
    "smooth_l1_loss": _loss,
    "pow": _raised,
    "product": _product,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "upsample_nearest2d": _upsample,
    "_upsample_nearest_exact2d": _upsample,
    "native_batch_norm_backward": _nothing,
    "im2col": _columns,
}
