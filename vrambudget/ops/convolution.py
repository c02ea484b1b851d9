"""Convolutions as PyTorch makes them on a GPU with cuDNN.

    x       [B, I, *image]             kept; under autocast a low-precision copy
    weight  [O, I / groups, *kernel]   kept; likewise
    bias    [O]                        added in place
    y       [B, O, *image]             channels last where x's or the weight's memory is

    forward     x and the weight in y's format, copied where they are not; a workspace
    backward    x and dy in that format; dx, a workspace; dweight, a workspace; then dbias

A convolution over one dimension is one over an image that is 1 high, and always contiguous.
PyTorch's own kernels take contiguous tensors. That for depthwise convolutions has no workspace; the
one of matrix products has

    columns    [I x kernel, y's image]   of one image, temporary; not for single pixels without
                                         stride or padding, but always for dx

    backward    dx, columns, dbias, then dweight

Source: aten/src/ATen/native/Convolution.cpp (_convolution, convolution_backward), ConvUtils.h
(cudnn_conv_suggest_memory_format), cudnn/ConvShared.cpp, cuda/DepthwiseConv2d.cu,
cuda/ConvolutionMM2d.cu; derivatives.yaml (convolution).
Not modelled: groups and dilation in the kernel of matrix products.
"""

from dataclasses import dataclass

from vrambudget.dtypes import DType, float64
from vrambudget.engine.autocast import lower_precision
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, ShapeError, Tensor, empty, numel
from vrambudget.ops.channels_last import is_like_channels_last, is_packed, packed_strides
from vrambudget.ops.convolution_kernels import Direction, Geometry, select_kernel, workspace
from vrambudget.ops.reduce import sum_over
from vrambudget.ops.workspaces import cublas_workspace

_LINE = 3  # dimensions of [B, I, length]
_NAMES = {
    "cudnn": "convolution",
    "depthwise": "depthwise_convolution",
    "native": "convolution_by_columns",
}
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    geometry: Geometry | None = None,
    *,
    output_padding: Shape | None = None,
) -> Tensor:
    """Return y; without a geometry the kernel moves by its own size. Raises ShapeError.

    With an output padding it is a transposed one.
    """
    bias = None if bias is None else lower_precision(bias)
    weight = lower_precision(weight)
    x = lower_precision(x)
    geometry = geometry or Geometry.of_patches(weight.shape[2:])
    channels = weight.shape[1] * geometry.groups if output_padding is None else weight.shape[0]
    if x.shape[1] != channels:
        raise ShapeError(f"an image of {x.shape[1]} channels by a weight {list(weight.shape)}")
    kept = keep(x), keep(weight)
    made = call(x, weight, geometry, output_padding=output_padding)
    context.operation = _NAMES[made.kernel]
    y = made.result()
    wants = x.requires_grad, weight.requires_grad, bias is not None and bias.requires_grad

    def backward(dy: Tensor) -> Gradients:
        return made.backward(dy, wants)

    return record(_NAMES[made.kernel], y, inputs=(x, weight, bias), saved=kept, backward=backward)


def call(
    x: Tensor, weight: Tensor, geometry: Geometry, *, output_padding: Shape | None = None
) -> "_Call":
    """Return what one convolution makes; with an output padding it is a transposed one."""
    layouts = _Layout.of(x), _Layout.of(weight)
    if output_padding is None:
        return _Call(*layouts, geometry)
    return _Transposed(*layouts, geometry, output_padding)


@dataclass(frozen=True, slots=True)
class _Layout:
    """A tensor as an image, as far as a convolution looks at it."""

    shape: Shape
    dtype: DType
    strides: Shape

    @classmethod
    def of(cls, x: Tensor) -> "_Layout":
        shape, strides = x.shape, x.actual_strides()
        if x.ndim == _LINE:  # unsqueeze(2)
            shape = (*shape[:2], 1, shape[2])
            strides = (*strides[:2], x.shape[2] * strides[2], strides[2])
        return cls(shape, x.dtype, strides)

    @property
    def suggests_channels_last(self) -> bool:
        return self.dtype is not float64 and is_like_channels_last(self.shape, self.strides)

    def copied(self, *, channels_last: bool) -> Tensor | None:
        """Return the copy that `contiguous(memory_format=)` makes, None where it makes none."""
        if is_packed(self.shape, self.strides, channels_last=channels_last):
            return None
        return empty(self.shape, self.dtype)


class _Call:
    """One convolution: what its backward needs to know of its forward."""

    def __init__(self, x: _Layout, weight: _Layout, geometry: Geometry) -> None:
        self.x, self.weight = x, weight
        self.is_line = len(geometry.stride) < len(x.shape[2:])
        self.geometry = geometry.over_images() if self.is_line else geometry
        last = not self.is_line and (x.suggests_channels_last or weight.suggests_channels_last)
        self.kernel = select_kernel(
            x.shape, weight.shape, x.dtype, self.geometry, channels_last=last
        )
        self.last = last and self.kernel == "cudnn"
        self.y_shape = self.geometry.output_shape(x.shape, weight.shape)

    def result(self) -> Tensor:
        """Return y."""
        y = self._forward()
        return _as_line(y) if self.is_line else y

    def _forward(self) -> Tensor:
        """Return y as an image."""
        x = self.x.copied(channels_last=self.last)
        y = self._new(self.y_shape)
        weight = self.weight.copied(channels_last=self.last)
        self._work(Direction.FORWARD)
        if self.kernel == "native":
            self._columns(always=False)
        del weight, x
        return y

    def backward(self, dy: Tensor, wants: tuple[bool, bool, bool]) -> Gradients:
        """Return the gradients of x, weight and bias."""
        gradient = _Layout.of(dy)
        needs_x = wants[1] or self.is_line
        copies = [self.x.copied(channels_last=self.last)] if needs_x else []
        copies.append(gradient.copied(channels_last=self.last))
        if self.kernel == "native":
            return self._by_columns(gradient, dy, wants)
        dx = self._input_gradient() if wants[0] else None
        dweight = None
        if wants[1]:
            dweight = self._new(self.weight.shape)
            self._work(Direction.WEIGHT)
        copies.clear()
        dbias = _bias_gradient(gradient, dy) if wants[2] else None
        return self._as_given(dx), self._as_given(dweight), dbias

    def _by_columns(
        self, gradient: _Layout, dy: Tensor, wants: tuple[bool, bool, bool]
    ) -> Gradients:
        """Return the gradients that the kernel of matrix products makes."""
        dx = self._new(self.x.shape) if wants[0] else None
        columns = self._columns(always=True) if wants[0] else None
        dbias = _bias_gradient(gradient, dy) if wants[2] else None
        dweight = self._new(self.weight.shape) if wants[1] else None
        if wants[1] and columns is None:
            columns = self._columns(always=False)
        del columns
        return self._as_given(dx), self._as_given(dweight), dbias

    def _columns(self, *, always: bool) -> Tensor | None:
        """Return one image as columns, None where it serves as it is; a product follows."""
        moves = self.geometry
        kernel = self.weight.shape[2:]
        trivial = {*kernel, *moves.stride} == {1} and set(moves.padding) == {0}
        columns = None
        if always or not trivial:
            rows = self.weight.shape[1] * numel(kernel)
            columns = empty((rows, numel(self.y_shape[2:])), self.x.dtype)
        cublas_workspace()
        return columns

    def _as_given(self, gradient: Tensor | None) -> Tensor | None:
        return _as_line(gradient) if gradient is not None and self.is_line else gradient

    def _input_gradient(self) -> Tensor:
        dx = self._new(self.x.shape)
        weight = self.weight.copied(channels_last=self.last)
        self._work(Direction.INPUT)
        del weight
        return dx

    def _new(self, shape: Shape) -> Tensor:
        strides = packed_strides(shape) if self.last else None
        return empty(shape, self.x.dtype, strides)

    def _work(self, direction: Direction) -> None:
        """Let the kernel have its workspace, for as long as it runs."""
        if self.kernel == "cudnn":
            x, weight, y = self.x.shape, self.weight.shape, self.y_shape
            workspace(
                direction, self.x.dtype, (x, weight, y), self.geometry, channels_last=self.last
            )


class _Transposed(_Call):
    """A transposed convolution: its y is the gradient of a convolution's input, and so on.

    Source: aten/src/ATen/native/cudnn/ConvShared.cpp (cudnn_convolution_transpose_forward,
    _backward_input, _backward_weight).
    """

    def __init__(
        self, x: _Layout, weight: _Layout, geometry: Geometry, output_padding: Shape
    ) -> None:
        self.x, self.weight = x, weight
        self.is_line = len(geometry.stride) < len(x.shape[2:])
        if self.is_line:
            geometry, output_padding = geometry.over_images(), (0, *output_padding)
        self.geometry, self.kernel = geometry, "cudnn"
        self.last = not self.is_line and (x.suggests_channels_last or weight.suggests_channels_last)
        self.y_shape = geometry.input_shape(x.shape, weight.shape, output_padding)

    def _forward(self) -> Tensor:
        x = self.x.copied(channels_last=self.last)
        y = self._new(self.y_shape)
        weight = self.weight.copied(channels_last=self.last)
        self._work(Direction.INPUT)
        del weight, x
        return y

    def _input_gradient(self) -> Tensor:
        dx = self._new(self.x.shape)
        weight = self.weight.copied(channels_last=self.last)
        self._work(Direction.FORWARD)
        del weight
        return dx

    def _work(self, direction: Direction) -> None:
        shapes = self.y_shape, self.weight.shape, self.x.shape
        workspace(direction, self.x.dtype, shapes, self.geometry, channels_last=self.last)


def _bias_gradient(layout: _Layout, dy: Tensor) -> Tensor:
    """Return the sum of dy, which `layout` has as an image, over all but channels."""
    whole = Tensor(layout.shape, dy.dtype, dy.storage, layout.strides)
    return sum_over(whole, (0, *range(2, whole.ndim)), (whole.shape[1],))


def _as_line(x: Tensor) -> Tensor:
    """Return an image that is 1 high as a line: squeeze(2)."""
    strides = None if x.strides is None else (*x.strides[:2], x.strides[3])
    line = Tensor((*x.shape[:2], x.shape[3]), x.dtype, x.storage, strides)
    line.is_view = True
    return line
