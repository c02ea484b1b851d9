"""Sums and means, with the buffers that they need (ops.reduce_buffers says which and why).

    sum, mean    keep nothing; backward expands the gradient (mean makes a new tensor of it)

Source: aten/src/ATen/native/ReduceOps.cpp; ExpandUtils.h (sum_to); derivatives.yaml (sum, mean).
"""

from vrambudget.dtypes import DType, float32, int64, uint8
from vrambudget.engine.autocast import full_precision
from vrambudget.engine.autograd import record, sums_gradients
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_bytes, numel
from vrambudget.ops.reduce_buffers import SumSplit, reduction_buffers


@sums_gradients
def sum_to_size(x: Tensor, shape: Shape) -> Tensor:
    """Sum the broadcast dimensions of a gradient away (at::sum_to). Unknown to autograd.

    Where leading ones go, the result is a view of a sum that has them, unless all go.
    """
    lead = x.ndim - len(shape)
    summed = [i for i in range(x.ndim) if i < lead or (shape[i - lead] == 1 and x.shape[i] != 1)]
    if not summed:
        return x
    y = sum_over(x, tuple(summed), shape)
    y.is_view = bool(lead and shape)
    return y


def sum_over(x: Tensor, dims: tuple[int, ...], shape: Shape) -> Tensor:
    """Sum x over `dims` into a new tensor [*shape] (Tensor.sum). Unknown to autograd.

    Backward inside an autocast region sums into float32 (autocast_mode.h, fp32_set_opt_dtype).
    """
    context.operation = "sum"
    dtype = x.dtype if context.autocast is None else float32
    y = empty(shape, dtype)
    with_partial_sums(x, dims, dtype)
    return y


def with_partial_sums(
    x: Tensor, summed: tuple[int, ...], dtype: DType | None = None, *, accumulator: int = 4
) -> None:
    """Allocate and free what a sum of x over dimensions `summed` needs besides its result.

    `dtype`: of the result, x's own if not given; `accumulator`: bytes of a partial sum.
    """
    buffers = reduction_buffers(
        context.platform,
        x.shape,
        x.actual_strides(),
        tuple(i % x.ndim for i in summed),
        itemsize=x.dtype.itemsize,
        output_itemsize=(dtype or x.dtype).itemsize,
        accumulator=accumulator,
    )
    waiting = empty_bytes(buffers.waiting) if buffers.waiting else None
    if x.ndim and x.strides is None and len(summed) == x.ndim and len(buffers.kernels) == 1:
        split = SumSplit(numel(x.shape[:-1]), x.shape[-1], x.dtype.itemsize, accumulator)
        context.splits.add(split)
    for partial_bytes, semaphore_bytes in buffers.kernels:
        partial = empty((partial_bytes // accumulator, accumulator), uint8)
        semaphores = empty_bytes(semaphore_bytes)
        del semaphores, partial
    del waiting


def mean_last(x: Tensor) -> Tensor:
    """Return the mean over the last dimension: [..., C] -> [..., 1]."""
    context.operation = "mean"
    y = empty((*x.shape[:-1], 1), x.dtype)
    with_partial_sums(x, (-1,))
    shape = x.shape

    def backward(dy: Tensor) -> Tensor:
        return empty(shape, dy.dtype)  # the gradient expanded, divided by C

    return record("mean", y, inputs=(x,), backward=backward)


def mean_all(x: Tensor) -> Tensor:
    """Return the mean of all elements."""
    context.operation = "mean"
    y = empty((), x.dtype)
    with_partial_sums(x, tuple(range(x.ndim)))
    shape = x.shape

    def backward(dy: Tensor) -> Tensor:
        return empty(shape, dy.dtype)  # the gradient expanded, divided by their number

    return record("mean", y, inputs=(x,), backward=backward)


def sum_dim(x: Tensor, dim: int, *, keepdim: bool = False, dtype: DType | None = None) -> Tensor:
    """Return the sum over `dim`: float32 under autocast; backward repeats the gradient.

    `dtype`: of the result; the kernel casts as it reads.
    """
    x = full_precision(x) if dtype is None else x
    dim %= x.ndim
    context.operation = "sum"
    tail = x.shape[dim + 1 :]
    y = empty((*x.shape[:dim], *((1,) if keepdim else ()), *tail), dtype or x.dtype)
    with_partial_sums(x, (dim,), dtype)
    shape = x.shape

    def backward(dy: Tensor) -> Tensor:
        strides = dy.actual_strides()
        rest = strides[dim + 1 :] if keepdim else strides[dim:]
        return dy.viewed(shape, (*strides[:dim], 0, *rest))

    return record("sum", y, inputs=(x,), backward=backward)


def sum_all(x: Tensor) -> Tensor:
    """Return the sum of all elements: float32 under autocast; backward repeats the gradient."""
    x = full_precision(x)
    context.operation = "sum"
    y = empty((), x.dtype)
    with_partial_sums(x, tuple(range(x.ndim)))
    shape = x.shape

    def backward(dy: Tensor) -> Tensor:
        return dy.viewed(shape, (0,) * len(shape))

    return record("sum", y, inputs=(x,), backward=backward)


def count_true(x: Tensor) -> Tensor:
    """Return the sum of a bool tensor: int64, for which its elements are cast first."""
    context.operation = "sum"
    y = empty((), int64)
    integers = empty(x.shape, int64)
    with_partial_sums(integers, tuple(range(x.ndim)), accumulator=int64.itemsize)
    del integers
    return y
