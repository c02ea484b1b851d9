"""Elements selected by index tensors, and their gradient: an accumulating index_put.

    x        [N, ...]     never kept
    indices  [S]  int64   kept if x needs a gradient
    y        [S, ...]

index_add_ keeps the indices and, for its shape alone, the source.

backward makes zeros like x and adds the rows of dy to them; equal indices must be adjacent, so they
are sorted first. That takes four arrays of S indices (as offsets, sorted, their rows, and 0 .. S-1)
and CUB's temporary storage, which depends on how many bits the largest index has.

Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp (index_backward),
cuda/Indexing.cu (index_put_with_sort_kernel, wrapIndexOnce); derivatives.yaml (index, index_add).
Not modelled: more than two index tensors, deterministic algorithms. Boolean masks: `masked`.
"""

from vrambudget.dtypes import int64
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty, empty_bytes
from vrambudget.ops.cub import sort_pairs_bytes
from vrambudget.ops.shape import contiguous

_DIGITS = 256  # what a pass of the sort distinguishes


def index_rows(x: Tensor, indices: Tensor) -> Tensor:
    """Return x[indices]: [N, ...], [S] or [R, S] -> [S, ...] or [R, S, ...]."""
    kept = keep(indices, when=x.requires_grad)
    context.operation = "index"
    y = empty((*indices.shape, *x.shape[1:]), x.dtype)
    shape, dtype, count = x.shape, x.dtype, indices.numel

    def backward(dy: Tensor) -> Tensor:
        dx = empty(shape, dtype)
        accumulating_buffers(shape[0], (count,), dy)
        return dx

    return record("index", y, inputs=(x,), saved=(kept,), backward=backward)


def index_pairs(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return x[rows, columns]: [N, M, ...], [S], [S] -> [S, ...]."""
    kept = keep(rows, when=x.requires_grad), keep(columns, when=x.requires_grad)
    context.operation = "index"
    y = empty((*rows.shape, *x.shape[2:]), x.dtype)
    shape, dtype, count = x.shape, x.dtype, rows.shape[0]

    def backward(dy: Tensor) -> Tensor:
        dx = empty(shape, dtype)
        accumulating_buffers(shape[0] * shape[1], (count, count), dy)
        return dx

    return record("index", y, inputs=(x,), saved=kept, backward=backward)


def index_add_(x: Tensor, indices: Tensor, source: Tensor) -> Tensor:
    """Return x, with the rows of `source` [S, ...] added to those that `indices` [S] name."""
    kept = keep(indices, when=source.requires_grad), keep(source, when=source.requires_grad)
    shape, dtype = source.shape, source.dtype

    def backward(dy: Tensor) -> tuple[Tensor, Tensor]:
        return dy, empty(shape, dtype)  # index_select

    y = Tensor(x.shape, x.dtype, x.storage, x.strides)
    return record("index_add", y, inputs=(x, source), saved=kept, backward=backward)


def gather(x: Tensor, indices: Tensor) -> Tensor:
    """Return what `indices` name along one dimension, as large as they are (Tensor.gather).

    x is kept; backward adds the gradient into zeros as large as x, in place.
    """
    kept = keep(x, when=x.requires_grad), keep(indices, when=x.requires_grad)
    context.operation = "gather"
    y = empty(indices.shape, x.dtype)
    shape, dtype = x.shape, x.dtype
    return record("gather", y, inputs=(x,), saved=kept, backward=lambda _dy: empty(shape, dtype))


def accumulating_buffers(
    places: int, counts: tuple[int, ...], values: Tensor, indices: list[Tensor] | None = None
) -> None:
    """Allocate and free what x.index_put_(indices, values, accumulate=True) needs.

    `places`: how many the indices distinguish; `counts`: elements of each index tensor; `indices`:
    those that nobody else holds, which go as soon as there are offsets.
    """
    count = counts[0]
    offsets = _offsets(count)
    for more in counts[1:]:
        added = _offsets(more)
        del added
    if indices is not None:
        indices.clear()
    rows = contiguous(values)
    sorted_offsets, original_rows = empty((count,), int64), empty((count,), int64)
    positions = empty((count,), int64)
    passes = 1
    while _DIGITS**passes < places:
        passes += 1
    empty_bytes(sort_pairs_bytes(count, passes=passes))  # freed at once: nobody holds it
    del positions, original_rows, sorted_offsets, rows, offsets


def _offsets(count: int) -> Tensor:
    """Return indices % size * stride: negative ones count from the end."""
    wrapped = empty((count,), int64)
    offsets = empty((count,), int64)
    del wrapped
    return offsets
