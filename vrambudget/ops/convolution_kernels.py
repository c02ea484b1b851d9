"""Which kernel takes a convolution, and the workspace that cuDNN's takes.

    cudnn        all but the following
    depthwise    a channel in each group, contiguous: PyTorch's own kernel, unless in float16 cuDNN
                 is the quicker one
    native       bfloat16 before Ampere: PyTorch's own, by matrix products over columns

cuDNN's own answer is taken where it is installed or kept in the package; what is left is counted as
0, and `context.unknown_workspaces` has how many bytes it touches.

Source: aten/src/ATen/native/Convolution.cpp (ConvParams: is_depthwise, use_cudnn,
use_cudnn_depthwise; check_cudnn_depthwise_workload_with_filter), Conv_v8.cpp (run_conv_plan).
"""

from dataclasses import dataclass
from operator import index
from typing import Literal

from vrambudget.cudnn.answers import UNKNOWN, workspace_bytes
from vrambudget.cudnn.question import Convolution, Direction
from vrambudget.dtypes import DType, bfloat16, float16
from vrambudget.engine.context import Platform, context, made_for
from vrambudget.engine.sizes import pure
from vrambudget.engine.tensor import Shape, empty_bytes, numel
from vrambudget.tape.events import Purpose

__all__ = ["Direction", "Geometry", "Kernel", "select_kernel", "workspace"]
Kernel = Literal["cudnn", "depthwise", "native"]

_AMPERE = (8, 0)
_IMAGE = 4  # dimensions of [B, C, H, W]


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a kernel moves over an image, by dimension of the image."""

    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int = 1

    @classmethod
    def of_patches(cls, kernel: Shape) -> "Geometry":
        """Return how a kernel cuts an image into patches."""
        return cls(kernel, (0,) * len(kernel), (1,) * len(kernel))

    def over_images(self) -> "Geometry":
        """Return what it is for a line that is taken as an image (view1d_as_2d)."""
        stride, padding, dilation = (1, *self.stride), (0, *self.padding), (1, *self.dilation)
        return Geometry(stride, padding, dilation, self.groups)

    def output_shape(self, x: Shape, weight: Shape) -> Shape:
        """Return y's shape (conv_output_size)."""
        sizes = zip(x[2:], weight[2:], self.stride, self.padding, self.dilation, strict=True)
        image = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
        return x[0], weight[0], *image

    def input_shape(self, y: Shape, weight: Shape, output_padding: Shape) -> Shape:
        """Return the shape of the x whose convolution has y's (conv_input_size)."""
        sizes = zip(
            y[2:], weight[2:], self.stride, self.padding, self.dilation, output_padding, strict=True
        )
        image = ((n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in sizes)
        return y[0], weight[1] * self.groups, *image


def select_kernel(
    x: Shape, weight: Shape, dtype: DType, geometry: Geometry, *, channels_last: bool
) -> Kernel:
    """Return the kernel that PyTorch selects on the current GPU."""
    cudnn_takes = dtype is not bfloat16 or context.platform.compute_capability >= _AMPERE
    is_depthwise = geometry.groups > 1 and x[1] == geometry.groups and weight[0] % x[1] == 0
    if not is_depthwise:
        return "cudnn" if cudnn_takes else "native"
    if cudnn_takes and (channels_last or (dtype is float16 and _is_quicker(x, weight, geometry))):
        return "cudnn"
    return "depthwise"


def _is_quicker(x: Shape, weight: Shape, geometry: Geometry) -> bool:
    """Whether PyTorch knows cuDNN to be quicker at a depthwise convolution in float16."""
    if len(x) != _IMAGE or any(d != 1 for d in geometry.dilation) or x[1] < 32:  # noqa: PLR2004
        return False
    stride = geometry.stride
    if stride[0] != stride[1] and x[2] != 1:
        return False
    return _pays(x, weight, stride[1])


def _pays(x: Shape, weight: Shape, stride: int) -> bool:
    """Decide by sizes, as they were measured for check_cudnn_depthwise_workload_with_filter."""
    batch, channels, height, width = x
    size = weight[3]
    if height == 1 and stride == 1:
        return True
    if weight[2] != size or size not in {1, 3, 5} or width < 7:  # noqa: PLR2004
        return False
    if stride != 2:  # noqa: PLR2004
        return bool(stride == 1)
    if batch == 1:
        return size > 1 or width <= 28  # noqa: PLR2004
    if size == 1:
        return batch <= 16 and channels >= 128 and width <= 7  # noqa: PLR2004
    return channels >= 512 or (channels >= 256 and width >= 28)  # noqa: PLR2004


def workspace(
    direction: Direction,
    dtype: DType,
    shapes: tuple[Shape, Shape, Shape],
    geometry: Geometry,
    *,
    channels_last: bool,
) -> None:
    """Allocate and free what cuDNN's engine works in; `shapes`: of x, weight and y."""
    asked = direction, dtype.name, channels_last
    nbytes = _bytes(asked, shapes, geometry, context.platform)
    if nbytes == UNKNOWN:
        x, weight, y = map(numel, shapes)
        context.unknown_workspaces.append((x + weight + y) * dtype.itemsize)
    elif nbytes:
        with made_for(Purpose.WORKSPACES):
            empty_bytes(nbytes)


@pure
def _bytes(
    asked: tuple[Direction, str, bool],
    shapes: tuple[Shape, Shape, Shape],
    geometry: Geometry,
    platform: Platform,
) -> int:
    direction, dtype, channels_last = asked
    x, weight, y = (tuple(map(index, shape)) for shape in shapes)
    moves = geometry.stride, geometry.padding, geometry.dilation
    what = Convolution(direction, dtype, x, weight, y, *moves, channels_last=channels_last)
    return workspace_bytes(what, platform.compute_capability, platform.multiprocessors)
