"""Embedding: rows of a weight, chosen by integer indices.

    indices  [...]      int64, kept if weight needs a gradient
    weight   [V, C]     never kept
    y        [..., C]

backward makes a dense gradient [V, C] of the weight's type. For up to 3072 indices, one kernel adds
up the rows. More are sorted first: equal indices form segments, segments are cut into parts of 10
rows, and the parts' sums (float32 [parts, C], at most N / 10 + min(N, V) parts) are added up per
segment. If the segments would be too few to fill the GPU, parts are added atomically instead (since
2.11). The sort covers all 64 bits of the indices, since 2.13 only those that V needs.

Padding rows (padding_idx) change nothing here.

Source: aten/src/ATen/native/Embedding.cpp, cuda/Embedding.cu (embedding_dense_backward_cuda),
cuda/EmbeddingBackwardKernel.cu; derivatives.yaml (embedding).
Not modelled: int32 indices, max_norm, scale_grad_by_freq, sparse gradients, deterministic
algorithms.
"""

from vrambudget.dtypes import DType, float32, int64
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_bytes
from vrambudget.engine.versions import torch_since
from vrambudget.ops.cub import exclusive_sum_bytes, sort_pairs_bytes, unique_by_key_bytes
from vrambudget.ops.shape import contiguous, reshape

_MOST_UNSORTED = 3072  # embedding_dense_backward_cuda
_ROWS_PER_PART = 10  # NROWS_PER_THREAD
_MAX_BLOCK = 1024  # MAX_BLOCK_SIZE
_BLOCKS_PER_MULTIPROCESSOR = 4  # MAX_ATOMIC_ACCUM_BLOCKS_PER_SM
_WARP = 32


def embedding(indices: Tensor, weight: Tensor) -> Tensor:
    """Return weight[indices]: [...], [V, C] -> [..., C]."""
    kept = keep(indices, when=weight.requires_grad)
    context.operation = "embedding"
    rows = reshape(indices, -1)  # index_select needs one dimension: a copy for expanded indices
    context.operation = "embedding"
    y = empty((*indices.shape, weight.shape[1]), weight.dtype)
    del rows
    shape, dtype = weight.shape, weight.dtype
    # Only what decides sizes is closed over; the indices themselves are in `kept`.
    count, must_copy = indices.numel, not indices.is_contiguous

    def backward(dy: Tensor) -> Tensor:
        copy = empty((count,), int64) if must_copy else None
        rows = contiguous(dy)
        dweight = dense_gradient(count, shape, dtype)
        del rows, copy  # held until the gradient is made
        return dweight

    return record("embedding", y, inputs=(weight,), saved=(kept,), backward=backward)


def dense_gradient(n: int, shape: Shape, dtype: DType, *, of_bags: bool = False) -> Tensor:
    """Make the gradient [V, C] for `n` indices, and its temporaries; of bags all are sorted."""
    if n <= _MOST_UNSORTED and not of_bags:
        return empty(shape, dtype)
    sorted_indices, original_rows = empty((n,), int64), empty((n,), int64)
    positions = empty((n,), int64)  # 0, 1, 2, ...: sorted along with the indices
    _come_and_go(sort_pairs_bytes(n, passes=_passes(shape[0])))
    del positions

    dweight = empty(shape, dtype)
    segments = min(n, shape[0])
    parts = n // _ROWS_PER_PART + segments
    segment_starts, segment_count = empty((n,), int64), empty((), int64)
    unique = empty((n,), int64)
    _come_and_go(unique_by_key_bytes(n))
    del unique
    parts_per_segment, first_parts = empty((segments,), int64), empty((segments,), int64)
    _come_and_go(exclusive_sum_bytes(segments))
    part_count = empty((), int64)
    part_starts = empty((parts,), int64)
    if not of_bags and _adds_atomically(segments, parts, shape[1]):
        part_segments = empty((parts,), int64)
        sums = None if dtype is float32 else empty(shape, float32)
        del part_segments
    else:
        sums = empty((parts, shape[1]), float32)
    del sums, part_starts, part_count, first_parts, parts_per_segment
    del segment_count, segment_starts, original_rows, sorted_indices
    return dweight


def _passes(rows: int) -> int:
    """Return how often the sort goes over the indices: once for 8 bits."""
    bits = rows.bit_length() if torch_since(2, 13) else 64
    return -(-bits // 8)


def _come_and_go(nbytes: int) -> None:
    empty_bytes(nbytes)  # nobody holds it: it is freed at once


def _adds_atomically(segments: int, parts: int, width: int) -> bool:
    """Whether so few segments would leave most of the GPU idle (use_fused_kernel)."""
    if not torch_since(2, 11):
        return False
    padded_width = -(-width // _WARP) * _WARP
    blocks = -(-segments * padded_width // min(padded_width, _MAX_BLOCK))
    fills = context.platform.multiprocessors * _BLOCKS_PER_MULTIPROCESSOR
    return blocks < fills and parts > 4 * blocks
