"""Choosing tokens: argmax, the largest logits, sorted logits, and a draw from probabilities.

    argmax            [B, V] -> int64 [B]
    topk_of_rows      values and indices [B, k] of long rows: radix select over blocks of a row
    topk_buffers      what any topk needs: that of short rows nothing
    sort_rows         float32 [B, V] -> values, and int64 indices
    multinomial       probabilities [B, V], divided by exponential draws -> argmax, int64 [B, 1];
                      of several samples topk, int64 [B, k]

Nothing here is followed by autograd.

Source: aten/src/ATen/native/cuda/TensorTopK.cu (should_use_multiblock, get_items_per_thread,
mbtopk::launch), TensorTopK.cpp (topk_out_cuda), Sort.cpp (sort_cuda_kernel),
Sort.cu (should_use_small_sort, launch_stable_sort_kernel, segmented_sort_pairs_by_full_sort),
Distributions.cpp (multinomial), TensorCompare.cpp. Torch 2.11.
CUB's tile for float32 keys was read off requests for compute capability 8.0.
Not modelled: rows of a million and more.
"""

import math

from vrambudget.dtypes import DType, bool_, float32, int64
from vrambudget.engine.context import context
from vrambudget.engine.sizes import pure
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_bytes
from vrambudget.ops.creation import made
from vrambudget.ops.cub import (
    scan_by_key_bytes,
    segmented_sort_bytes,
    sort_floats_bytes,
    sort_pairs_bytes,
)
from vrambudget.ops.reduce import with_partial_sums

_DIGITS = 256  # that a pass of the radix select distinguishes
_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 6  # 65,536 registers; 40 for each of 256 threads
_ITEMS = (4, 64)  # of a thread, at least and at most
_SEGMENTED_FROM = 128  # rows
_SORTED_IN_PLACE = 4096  # elements of a row, at most
SORTED_BYTES = frozenset({4, 8})  # of keys whose tiles are known (ops.cub)
_MULTIBLOCK = (  # rows up to, row's length from
    *((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800)),
    (2**31, 400),
)


def argmax(x: Tensor) -> Tensor:
    """Return where each row of x [B, V] is largest: int64 [B]."""
    y = made("argmax", x.shape[:1], int64)
    with_partial_sums(x, (1,), int64, accumulator=16)  # the value and its index
    return y


def topk_of_rows(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row of x [B, V], and where they are."""
    B, V = x.shape
    context.operation = "topk"
    values, indices = empty((B, k), x.dtype), empty((B, k), int64)
    _select(B, V, x.dtype)
    return values, indices


def topk_buffers(x: Tensor, chosen: Shape, dim: int, *, in_order: bool) -> bool:
    """Allocate and free what topk needs besides values and indices of the shape `chosen`.

    Returns whether that is all: another sort than those of `sort_buffers` puts them in order.
    """
    V, k = (x.shape[dim], chosen[dim]) if x.shape else (1, 1)
    if not k or not x.numel:
        return True
    copy = None if x.is_contiguous else empty(x.shape, x.dtype)
    _select(x.numel // V, V, x.dtype)
    del copy
    if not in_order or k <= _SORTED_IN_PLACE:
        return True
    places, values = empty(chosen, int64), empty(chosen, x.dtype)
    if dim not in {-1, x.ndim - 1} or x.dtype.itemsize not in SORTED_BYTES:
        return False
    sort_buffers(chosen, x.dtype)
    in_place = empty(chosen, int64)  # where each was in x
    del places, values, in_place
    return True


def _select(B: int, V: int, dtype: DType) -> None:
    """Find the largest of B long rows, each by several blocks; short ones take nothing."""
    if next(length for rows, length in _MULTIBLOCK if rows >= B) > V:
        return
    blocks = B * _blocks_of_a_row(context.platform.multiprocessors, B, V)
    radix = max(4, dtype.itemsize)
    kth_values, ks_to_find, desired = (empty_bytes(B * n) for n in (dtype.itemsize, 8, 2 * radix))
    counts = empty_bytes(blocks * _DIGITS * 2)
    digit_sums = empty_bytes(B * _DIGITS * 4)
    within_k_counts, kth_counts = empty_bytes(blocks * 4), empty_bytes(blocks * 4)
    for _ in range(2):
        empty_bytes(scan_by_key_bytes(blocks))  # freed at once: nobody holds it
    del kth_counts, within_k_counts, digit_sums, counts, desired, ks_to_find, kth_values


@pure
def _blocks_of_a_row(multiprocessors: int, B: int, V: int) -> int:
    threads = multiprocessors * _BLOCKS_PER_MULTIPROCESSOR * _THREADS
    least, most = _ITEMS
    items = max(least, min(-(-(B * V) // threads), most))
    return -(-V // (items * _THREADS))


def sort_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x [B, V] with its rows sorted, and where each element was."""
    context.operation = "sort"
    values, indices = empty(x.shape, x.dtype), empty(x.shape, int64)
    sort_buffers(x.shape, x.dtype)
    return values, indices


def sort_buffers(shape: Shape, dtype: DType) -> None:
    """Allocate and free what sorting rows [..., V] needs besides values and indices."""
    V = shape[-1]
    if V <= _SORTED_IN_PLACE:
        places = empty((V,), int64)  # 0, 1, 2, ..., copied into each row of indices
        del places
        return
    n = math.prod(shape)
    by_key = sort_pairs_bytes if dtype.itemsize == int64.itemsize else sort_floats_bytes
    positions = empty(shape, int64)  # with each element's row; alone, or where it was
    if n == V:
        empty_bytes(by_key(n))  # freed at once: nobody holds it
    elif n // V < _SEGMENTED_FROM:  # by value, then by row
        sorted_positions, keys = empty(shape, int64), empty(shape, dtype)
        empty_bytes(by_key(n))
        del keys
        empty_bytes(sort_pairs_bytes(n, passes=1))
        del sorted_positions
    else:
        empty_bytes(segmented_sort_bytes(n))
    del positions


def multinomial(probs: Tensor, samples: int = 1) -> Tensor:
    """Return draws of each row of probabilities [B, V], none twice: int64 [B, samples]."""
    B, V = probs.shape
    result = made("multinomial", (B, samples), int64)
    largest = _reduced(probs, (0, 1))
    is_finite = empty((), bool_)
    smallest = _reduced(probs, (0, 1))
    is_positive = empty((), bool_)
    is_valid = empty((), bool_)
    del is_positive, smallest, is_finite, largest
    sums = empty((B,), float32)
    with_partial_sums(probs, (1,))
    zeros = empty((B,), bool_)
    has_zeros = empty((), bool_)
    with_partial_sums(zeros, (0,), accumulator=1)
    del zeros, sums
    is_read = empty((), bool_)
    del is_read
    draws = empty((B, V), float32)  # exponential; probabilities divided by them, in place
    if samples > 1:
        values = empty((B, samples), float32)
        _select(B, V, float32)
        del values
    del draws, has_zeros, is_valid
    return result


def _reduced(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    y = empty((), x.dtype)
    with_partial_sums(x, dims)
    return y
