"""Rows picked by an index tensor, and their gradient: an accumulating index_put.

    x        [N, ...]     never kept
    indices  [S]  int64   kept if x needs a gradient
    y        [S, ...]

backward makes zeros like x and adds the rows of dy into it; equal indices must meet, so they are
sorted first. Meanwhile there are four arrays of S indices (as offsets, sorted, their rows, and
0 .. S-1) and CUB's temporary storage, which depends on how many bits the largest index has.

Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp (index_backward),
cuda/Indexing.cu (index_put_with_sort_kernel, wrapIndexOnce); derivatives.yaml (index).
Not modelled: several index tensors, boolean masks, deterministic algorithms.
"""

from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.dtypes import int64
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_bytes
from vrambudget.ops.cub import sort_pairs_bytes
from vrambudget.ops.shape import contiguous

_DIGITS = 256  # what a pass of the sort tells apart


def index_rows(x: Tensor, indices: Tensor) -> Tensor:
    """Return x[indices]: [N, ...], [S] -> [S, ...]."""
    kept = keep(indices, when=x.requires_grad)
    context.operation = "index"
    y = empty((*indices.shape, *x.shape[1:]), x.dtype)
    shape, dtype, count = x.shape, x.dtype, indices.shape[0]

    def backward(dy: Tensor) -> Tensor:
        dx = empty(shape, dtype)
        _accumulate_rows(shape, count, dy)
        return dx

    return record("index", y, inputs=(x,), saved=(kept,), backward=backward)


def _accumulate_rows(shape: Shape, count: int, values: Tensor) -> None:
    """Allocate and free what x.index_put_((indices,), values, accumulate=True) needs."""
    wrapped = empty((count,), int64)  # indices % N: negative ones count from the end
    offsets = empty((count,), int64)
    del wrapped
    rows = contiguous(values)
    sorted_offsets, original_rows = empty((count,), int64), empty((count,), int64)
    positions = empty((count,), int64)
    passes = 1
    while _DIGITS**passes < shape[0]:
        passes += 1
    empty_bytes(sort_pairs_bytes(count, passes=passes))  # freed at once: nobody holds it
    del positions, original_rows, sorted_offsets, rows, offsets
