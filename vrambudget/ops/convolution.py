"""The convolution that cuts an image into patches: its kernel is as large as its stride.

    x       [B, I, h, w]          kept; under autocast a low-precision copy
    weight  [O, I, p, q]          kept; likewise
    y       [B, O, h / p, w / q]
    backward: a contiguous copy of dy, dx if x is no image, dweight; then dbias

Source: aten/src/ATen/native/Convolution.cpp (convolution_backward), cudnn/ConvShared.cpp
(cudnn_convolution_backward); derivatives.yaml (convolution).
Not modelled: cuDNN's workspaces. They come and go within the first operation of forward and the
last of backward, where little else is alive. Without cuDNN, PyTorch's own kernel takes a buffer
[I * p * q, h / p * w / q] there instead.
"""

from vrambudget.engine.autocast import lower_precision
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import ShapeError, Tensor, empty
from vrambudget.ops.reduce import sum_over


def patch_convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return one number per patch and output channel. Raises ShapeError."""
    bias = lower_precision(bias)
    weight = lower_precision(weight)
    x = lower_precision(x)
    B, channels, height, width = x.shape
    features, expected, p, q = weight.shape
    if channels != expected:
        raise ShapeError(f"an image of {channels} channels by a weight {list(weight.shape)}")
    kept = keep(x), keep(weight)
    context.operation = "convolution"
    y = empty((B, features, height // p, width // q), x.dtype)
    x_shape, weight_shape, dtype, needs_x = x.shape, weight.shape, x.dtype, x.requires_grad

    def backward(dy: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        copy = None if dy.is_contiguous else empty(dy.shape, dtype)
        dx = empty(x_shape, dtype) if needs_x else None
        dweight = empty(weight_shape, dtype)
        del copy
        return dx, dweight, sum_over(dy, (0, 2, 3), (features,))  # new, also of a single patch

    return record("convolution", y, inputs=(x, weight, bias), saved=kept, backward=backward)
