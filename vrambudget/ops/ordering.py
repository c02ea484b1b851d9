"""Sorting and counting: topk, sort, and the offsets of groups in a sorted list.

    topk, max      values, and int64 indices, which are kept; backward scatters into zeros
    sort, count_each, running_sum    of integers: autograd does not follow them

Source: aten/src/ATen/native/cuda/TensorTopK.cpp, Sort.cpp (sort_cuda_kernel), Sort.cu
(segmented_sort_large_segments), TensorCompare.cu (max_launch_kernel), SummaryOps.cu (histc),
ScanKernels.cpp (cumsum); derivatives.yaml (topk, max).
Not modelled: topk of more than 4096 values, or of slices so long that they are split over blocks.
"""

from vrambudget.dtypes import int64
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_bytes
from vrambudget.engine.versions import torch_since
from vrambudget.ops.creation import made
from vrambudget.ops.cub import inclusive_sum_bytes, sort_pairs_bytes
from vrambudget.ops.reduce import with_partial_sums

MOST_SORTED_IN_PLACE = 4096  # should_use_small_sort


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest of each row, and where they are: [N, E] -> [N, k], [N, k]."""
    return _chosen("topk", x, (*x.shape[:-1], k))


def max_last(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest of each row, and where it is: [..., C] -> [...], [...]."""
    chosen = _chosen("max", x, x.shape[:-1])
    with_partial_sums(x, (-1,), accumulator=2 * int64.itemsize)  # pairs of value and index
    return chosen


def _chosen(operation: str, x: Tensor, chosen: Shape) -> tuple[Tensor, Tensor]:
    context.operation = operation
    values, indices = empty(chosen, x.dtype), empty(chosen, int64)
    kept = keep(indices, when=x.requires_grad)
    shape, dtype = x.shape, x.dtype

    def backward(dy: Tensor) -> Tensor:
        del dy  # scattered into zeros
        return empty(shape, dtype)

    record(operation, values, inputs=(x,), saved=(kept,), backward=backward)
    return values, indices


def sort(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return int64 x [S] sorted, and where each element was."""
    context.operation = "sort"
    values, indices = empty(x.shape, x.dtype), empty(x.shape, int64)
    positions = empty(x.shape, int64)  # 0, 1, 2, ...
    if x.shape[0] > MOST_SORTED_IN_PLACE:
        empty_bytes(sort_pairs_bytes(x.shape[0]))  # freed at once: nobody holds it
    del positions
    return values, indices


def count_each(x: Tensor, groups: int) -> Tensor:
    """Return how often each of 0 .. groups-1 occurs in int32 x [S]: torch.histc, [groups].

    Of one group the limits are identical, 0, so minimum and maximum are read back (SummaryOps.cu).
    """
    counts = made("histc", (groups,), x.dtype)
    if groups == 1:
        read_back_extremes(x)
    return counts


def bincount(x: Tensor, groups: int) -> Tensor:
    """Return how often each of 0 .. groups-1 occurs in int64 x [S]: int64 [groups].

    Minimum and maximum are read back first, since 2.13 both at once (aminmax).
    """
    context.operation = "bincount"
    size = int64.itemsize
    if torch_since(2, 13):
        smallest, largest = empty((), int64), empty((), int64)
        with_partial_sums(x, (0,), accumulator=2 * size)
        result = empty((groups,), int64)
        del smallest, largest
        return result
    read_back_extremes(x)
    return empty((groups,), int64)


def read_back_extremes(x: Tensor) -> None:
    """x.min() and x.max(), one after the other."""
    for _ in range(2):
        extreme = empty((), x.dtype)
        with_partial_sums(x, (0,), accumulator=x.dtype.itemsize)
        del extreme


def running_sum(x: Tensor) -> Tensor:
    """Return the cumulative sum of int32 x [n]."""
    y = made("cumsum", x.shape, x.dtype)
    empty_bytes(inclusive_sum_bytes(x.shape[0], x.dtype.itemsize))  # freed at once: nobody holds it
    return y
