"""Where a tensor is not zero: PyTorch reads back how many places there are, so the caller says it.

Source: aten/src/ATen/native/cuda/Nonzero.cu (nonzero_cuda_out_impl); TensorConversions.cpp (where).
Not modelled: more than 2**31 elements.
"""

from vrambudget.dtypes import int64
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_bytes, numel
from vrambudget.ops.cub import reduce_bytes, select_bytes
from vrambudget.ops.shape import contiguous

_COUNT_BYTES = 4


def nonzero(x: Tensor, count: int) -> tuple[Tensor, ...]:
    """Return the indices of `count` elements of x, a view [count] per dimension of one tensor."""
    found = indices(x, count)
    return tuple(found.viewed((count,), None) for _ in range(x.ndim))


def indices(x: Tensor, count: int) -> Tensor:
    """Return the indices of `count` elements of x: [count, dimensions], the transposed places."""
    rows = contiguous(x)
    found = places(x.shape, count)
    del rows
    return found.viewed((count, x.ndim), (1, count) if x.ndim > 1 else None)


def places(shape: Shape, count: int) -> Tensor:
    """Return where `count` elements of a contiguous tensor are: [dimensions, count]."""
    context.operation = "nonzero"
    found = empty_bytes(_COUNT_BYTES)
    empty_bytes(reduce_bytes(numel(shape)))  # freed at once: nobody holds it
    indices = empty((len(shape), count), int64)
    if shape:
        empty_bytes(select_bytes(numel(shape)))
    del found
    return indices
