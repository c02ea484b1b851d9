"""What a reduction (sum, mean, norm, all) allocates besides its result, exactly.

    a sum with few outputs and many inputs is split over thread blocks; the blocks share a buffer
    of partial results and an array of semaphores, freed when the kernel is launched

    a tensor that reaches beyond 2**31 bytes is summed in halves, one after the other; meanwhile
    16-bit results wait in a float32 buffer

PyTorch first sorts the dimensions by stride, summed ones in front, and joins those that are
adjacent in memory; the sizes of thread blocks follow from the result.

Source: aten/src/ATen/native/cuda/Reduce.cuh (setReduceConfig, gpu_reduce_kernel),
TensorIterator.cpp (reorder_dimensions, coalesce_dimensions, can_use_32bit_indexing,
get_dim_to_split, split).
Not modelled: reductions with two results (max with indices, var_mean), views that begin at an odd
element.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vrambudget.engine.context import Platform, context
from vrambudget.engine.sizes import pure
from vrambudget.engine.tensor import Shape, contiguous_strides

_WARP = 32
_MAX_THREADS = 512  # mnt_wrapper::MAX_NUM_THREADS
_FROM_SIZE_VECTORISED = 128  # along the input
_INPUT_VECTOR = 4  # vt0
_MIN_VALUES, _MAX_VALUES = 16, 256  # per thread
_FARTHEST = 2**31 - 1  # bytes that 32-bit indexing reaches
_OF_BLOCKS = _MAX_THREADS * _MIN_VALUES  # elements of a row's sum from one number of blocks on
_FEWEST_SPLIT = _MAX_THREADS * (_MAX_VALUES - 1)  # elements of one that is not split yet, at most


@dataclass(frozen=True, slots=True)
class Dimension:
    """Elements, and bytes from one to the next in input and output (0: the dimension is summed)."""

    size: int
    step: int
    output_step: int


@dataclass(frozen=True, slots=True)
class Buffers:
    """Bytes for results in halves, then per kernel (partial results, semaphores)."""

    waiting: int
    kernels: tuple[tuple[int, int], ...]


class SumSplit(NamedTuple):
    """What decides over how many blocks the sum of all elements of rows is split."""

    rows: int
    columns: int
    itemsize: int
    accumulator: int

    @property
    def blocks(self) -> int:
        """Over how many, 0 for one: enough to fill the GPU's multiprocessors."""
        whole = [Dimension(self.rows * self.columns, self.itemsize, 0)]
        partial_bytes, _ = _partial_sums(context.platform, whole, self.itemsize, self.accumulator)
        return partial_bytes // self.accumulator

    def grown(self, times: int, growth: Sequence[int]) -> "SumSplit":
        """Return the sizes after they grew so many times."""
        return SumSplit(*(size + by * times for size, by in zip(self, growth, strict=True)))

    def steady(self, growth: Sequence[int]) -> int:
        """Return how often the sizes can grow before there may be another number of blocks."""
        if not any(growth):
            return sys.maxsize
        if growth[0]:
            return 0
        elements = self.rows * self.columns
        edges = (_ceil_div(elements, _OF_BLOCKS) * _OF_BLOCKS, _FEWEST_SPLIT)
        return min(edge - elements for edge in edges if edge >= elements) // self.rows

    @property
    def accumulators(self) -> list[Shape]:
        """The shapes of what the blocks meet in."""
        return [(self.blocks, self.accumulator)] if self.blocks else []


@pure
def reduction_buffers(
    platform: Platform,
    shape: Shape,
    strides: Shape,
    summed: tuple[int, ...],
    *,
    itemsize: int,
    output_itemsize: int,
    accumulator: int,
) -> Buffers:
    """Return what summing dimensions `summed` of a tensor allocates besides its result.

    Bytes of an element: `itemsize` in the tensor, `output_itemsize` in the result, `accumulator` in
    a partial result. No kernel runs where there is nothing to sum (ReduceOps.cpp, sum_out).
    """
    if 0 in shape:
        return Buffers(0, ())
    dims = _dimensions(shape, strides, summed, itemsize, output_itemsize)
    waiting = 0
    if output_itemsize < accumulator and not _reachable(dims):
        outputs = [dim.size * dim.output_step for dim in dims]
        waiting = max(output_itemsize, *outputs) // output_itemsize * accumulator
    parts = (_partial_sums(platform, part, itemsize, accumulator) for part in _halves(dims))
    return Buffers(waiting, tuple(part for part in parts if part[0]))


def _dimensions(
    shape: Shape, strides: Shape, summed: Sequence[int], itemsize: int, output_itemsize: int
) -> list[Dimension]:
    """Return the dimensions, fastest first and summed ones before the others, joined."""
    kept = tuple(1 if i in summed else size for i, size in enumerate(shape))
    dims = [
        Dimension(size, step * itemsize, 0 if i in summed else output * output_itemsize)
        for i, (size, step, output) in enumerate(
            zip(shape, strides, contiguous_strides(kept), strict=True)
        )
    ]
    return _joined(_sorted(dims[::-1])) or [Dimension(1, itemsize, 0)]


def _sorted(dims: list[Dimension]) -> list[Dimension]:
    """Return the dimensions by insertion sort: the order is not total, so the algorithm decides."""
    for i in range(1, len(dims)):
        at = i
        for below in range(i - 1, -1, -1):
            order = _order(dims[below], dims[at])
            if order > 0:
                dims[below], dims[at] = dims[at], dims[below]
                at = below
            elif order < 0:
                break
    return dims


def _order(a: Dimension, b: Dimension) -> int:
    """Return 1 if b comes before a, -1 if a comes before b, 0 if it does not matter."""
    if (a.output_step == 0) != (b.output_step == 0):
        return 1 if b.output_step == 0 else -1
    for step_a, step_b in ((a.output_step, b.output_step), (a.step, b.step)):
        if step_a == 0 or step_b == 0:
            continue
        if step_a != step_b:
            return 1 if step_a > step_b else -1
        if a.size > b.size:
            return 1
    return 0


def _joined(dims: list[Dimension]) -> list[Dimension]:
    joined = dims[:1]
    for dim in dims[1:]:
        last = joined[-1]
        if last.size == 1:
            joined[-1] = dim
        elif dim.size == 1 or (
            last.size * last.step == dim.step and last.size * last.output_step == dim.output_step
        ):
            joined[-1] = Dimension(last.size * dim.size, last.step, last.output_step)
        else:
            joined.append(dim)
    return joined


def _reachable(dims: list[Dimension]) -> bool:
    elements = 1
    for dim in dims:
        elements *= dim.size
    inputs = 1 + sum((dim.size - 1) * dim.step for dim in dims)
    outputs = 1 + sum((dim.size - 1) * dim.output_step for dim in dims)
    return max(elements, inputs, outputs) <= _FARTHEST


def _halves(dims: list[Dimension]) -> Iterator[list[Dimension]]:
    """Yield parts that 32-bit indexing reaches, in the order in which they are summed."""
    if _reachable(dims):
        yield dims
        return
    # The dimension of the largest extent; of several, the last.
    extents = [(dim.size - 1) * max(dim.step, dim.output_step) for dim in dims]
    at = max(range(len(dims)), key=lambda i: (extents[i], i))
    half = dims[at].size // 2
    for size in (half, dims[at].size - half):
        part = Dimension(size, dims[at].step, dims[at].output_step)
        yield from _halves([*dims[:at], part, *dims[at + 1 :]])


def _partial_sums(
    platform: Platform, dims: list[Dimension], itemsize: int, accumulator: int
) -> tuple[int, int]:
    """Return the bytes of partial results and semaphores: zeros where the sum is not split."""
    summed = [dim for dim in dims if not dim.output_step]
    others = dims[len(summed) :]
    inputs, outputs = _product(summed), _product(others)
    on_fastest = not others or not summed or summed[0].step < others[0].step
    width, height = (inputs, outputs) if on_fastest else (outputs, inputs)
    fastest = dims[0].step if on_fastest else others[0].step
    vector = 1
    if fastest == itemsize:
        if on_fastest and width >= _FROM_SIZE_VECTORISED and len(summed) == 1:
            width //= _INPUT_VECTOR
        elif not on_fastest:
            vector = _output_vector(summed, others, itemsize)
            width //= vector
    block_width, block_height = _block(width, height, _MAX_THREADS // vector)

    step_input, step_output = (block_width, 1) if on_fastest else (1, block_width)
    if _ceil_div(inputs, step_input) < min(block_height * 16, _MAX_VALUES):
        return 0, 0  # each warp has an output of its own
    values = _ceil_div(inputs, step_input * block_height)
    blocks_per_multiprocessor = platform.max_threads_per_multiprocessor // (
        block_width * block_height
    )
    target = platform.multiprocessors * blocks_per_multiprocessor
    grid = _ceil_div(outputs // vector, step_output)
    if values < _MAX_VALUES or grid > target:
        return 0, 0
    blocks = min(_ceil_div(target, grid), _ceil_div(values, _MIN_VALUES))
    blocks = max(blocks, _ceil_div(values, _MAX_VALUES))
    if blocks == 1:
        return 0, 0
    size = accumulator * outputs * blocks
    return (size if on_fastest else size * block_width * vector), 4 * grid


def _output_vector(summed: list[Dimension], others: list[Dimension], itemsize: int) -> int:
    """Return how many neighbouring outputs one thread sums: 4, 2 or 1 (get_output_vec_size)."""
    divided = [others[0].size, *(dim.step // itemsize for dim in (*summed, *others[1:]))]
    vector = 4
    for n in divided:
        while n % vector:
            vector //= 2
    return vector


def _block(width: int, height: int, most: int) -> tuple[int, int]:
    """Return the thread block for a problem of width x height (set_block_dimension)."""
    widest, tallest = _power_of_two(min(width, most)), _power_of_two(min(height, most))
    down = min(tallest, most // min(widest, _WARP))
    return min(widest, most // down), down


def _power_of_two(n: int) -> int:
    """Return the largest power of two that is not above n, 1 for 0."""
    return 1 << (max(n, 1).bit_length() - 1)


def _product(dims: list[Dimension]) -> int:
    n = 1
    for dim in dims:
        n *= dim.size
    return n


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
