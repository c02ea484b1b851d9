"""Convolutions over lines, images and volumes, and transposed ones."""

from typing import Any

from vrambudget.ops.convolution import convolution
from vrambudget.ops.convolution_kernels import Geometry
from vrambudget.traced.rules.table import on


@on("conv1d", "conv2d", "conv3d")
def convolve(  # noqa: PLR0917 - torch's signature
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Convolve a batch of lines, images or volumes."""
    dims = weight.ndim - 2
    if x.ndim != weight.ndim:  # without a batch
        return NotImplemented
    stride, dilation = _each(stride, dims), _each(dilation, dims)
    if padding == "same":
        padded = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        if any(n % 2 for n in padded):  # padded on one side first
            return NotImplemented
        padding = [n // 2 for n in padded]
    padding = _each(0 if padding == "valid" else padding, dims)
    return convolution(x, weight, bias, Geometry(stride, padding, dilation, groups))


@on("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolve_transposed(  # noqa: PLR0917 - torch's signature
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Do what a convolution's backward pass does with its output's gradient."""
    if x.ndim != weight.ndim:  # without a batch
        return NotImplemented
    dims = weight.ndim - 2
    stride, padding, dilation = (_each(n, dims) for n in (stride, padding, dilation))
    moves = Geometry(stride, padding, dilation, groups)
    return convolution(x, weight, bias, moves, output_padding=_each(output_padding, dims))


def _each(value: Any, dims: int) -> tuple[int, ...]:
    numbers = tuple(value) if isinstance(value, list | tuple) else (value,)
    return numbers * dims if len(numbers) == 1 else numbers
