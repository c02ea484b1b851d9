"""What the CUDA kernels of images allocate besides their results, by aten operation.

    group norm                  a, b [N, C]; in backward ds, db, c1 [N, C] and c2, c3 [N, groups]
    batch norm of rows          moments of slices of the rows; in backward sums by channels
    average pools               an input or a gradient in another order than the input's is copied
    upsampling                  an input that lies in neither order is copied

A rule is called as those of `ops.temporaries`.

Source: aten/src/ATen/native/cuda (Im2Col.cu, AveragePool2d.cu,
group_norm_kernel.cu: GroupNormKernelImplInternal, GroupNormBackwardKernelImplInternal;
UpSampleNearest2d.cu: upsample_nearest2d_out_cuda_template, ..._backward_out_cuda_template;
UpSampleBilinear2d.cu: upsample_bilinear2d_backward_out_cuda_template).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from vrambudget.dtypes import float32, int32
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.ops.channels_last import is_like_channels_last, is_packed

_ROWS, _IMAGE = 2, 4  # dimensions
_CHANNELS_TO_GAIN = 4  # from here on channels last is the quicker way
_THREADS, _TILE, _OF_A_THREAD = 512, 32, 16  # of a block, its channels, the rows of each thread
_FEWEST_SLICES, _MOST_SLICES = 8, 128


def moments_of_rows(args: Any, _result: Any) -> None:
    """Find the moments of rows [N, C] for a batch norm: of many rows in slices.

    Source: cuda/Normalization.cuh (flexible_launch_configs,
    batch_norm_stats_channels_last_cuda_template).
    """
    x, training = args[0], args[5]
    if not (training and _is_of_rows(x)):
        return
    rows, channels = x.shape
    wide = min(_power(channels), _TILE)
    high = min(_power(-(-rows // _OF_A_THREAD)), _THREADS // wide)
    wide = min(_power(channels), _THREADS // high)
    slices = min(-(-rows // (high * _OF_A_THREAD)), _MOST_SLICES)
    if slices >= _FEWEST_SLICES:
        staged = _float32_rows(x, 1, 4 * slices, channels)
        counters = empty((-(-channels // wide),), int32)
        del staged, counters


def _batch_norm_backward(args: Any, _result: Any) -> None:
    """Sum up by channels where rows are normalised; slices' sums end before the result begins.

    Source: cuda/Normalization.cuh (batch_norm_backward_reduce_cuda_channels_last_template).
    """
    x = args[1]
    if _is_of_rows(x):
        sums = _float32_rows(x, 2, 1, x.shape[1])
        del sums


def _is_of_rows(x: Tensor) -> bool:
    return x.ndim == _ROWS and x.actual_strides()[1] == 1


def _power(n: int) -> int:
    """Return the highest power of two up to n."""
    return 1 << (max(n, 1).bit_length() - 1)


def _columns(args: Any, result: Tensor) -> None:
    """Resize the result, which began as large as the input, while both are there."""
    if result.numel > args[0].numel:
        began = empty(args[0].shape, args[0].dtype)
        del began


def _group_norm(args: Any, _result: Any) -> None:
    """Make the factors that the statistics and the weight come to: not for images of one pixel."""
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


def _float32_rows(x: Tensor, count: int, rows: int, columns: int) -> list[Tensor]:
    """Return that many tensors [rows, columns], of x's type, or float32 for 16-bit ones."""
    kind = float32 if x.dtype.itemsize < float32.itemsize else x.dtype
    return [empty((rows, columns), kind) for _ in range(count)]


def _upsample(args: Any, _result: Any, channels: int = _CHANNELS_TO_GAIN) -> None:
    """Copy an image that lies in neither order, or in channels last but has too few channels."""
    x = args[0]
    if x.ndim != _IMAGE or x.is_contiguous:
        return
    is_last = is_like_channels_last(x.shape, x.strides) and x.shape[1] >= channels
    if not (is_last and is_packed(x.shape, x.strides, channels_last=True)):
        copied = empty(x.shape, x.dtype)
        del copied


def _pooled(args: Any, _result: Any) -> None:
    """Copy the image, and then the gradient in front of it, that lie otherwise than it suggests."""
    *gradients, image = [x for x in args[:2] if isinstance(x, Tensor)]
    is_image = image.ndim == _IMAGE and not image.is_contiguous
    is_last = is_image and is_like_channels_last(image.shape, image.actual_strides())
    copies = [
        empty(x.shape, x.dtype)
        for x in (image, *gradients)
        if not is_packed(x.shape, x.actual_strides(), channels_last=is_last)
    ]
    del copies


OF_IMAGES: dict[str, Callable[[Any, Any], None]] = {
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    **dict.fromkeys(("upsample_nearest2d", "_upsample_nearest_exact2d"), _upsample),
    **dict.fromkeys(
        ("upsample_bilinear2d_backward", "upsample_nearest2d_backward"),
        partial(_upsample, channels=1),
    ),
    "native_batch_norm_backward": _batch_norm_backward,
    **dict.fromkeys(("avg_pool2d", "avg_pool2d_backward"), _pooled),
    "im2col": _columns,
}
"""By an operation's name."""
