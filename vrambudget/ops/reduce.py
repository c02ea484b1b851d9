"""Sums, and the buffers that a sum over many elements needs.

A sum whose outputs are few and whose inputs are many is split over thread blocks; the blocks meet in
a buffer of partial results and an array of semaphores, both from the caching allocator, both freed at
once. `partial_sums` follows `setReduceConfig` of aten/src/ATen/native/cuda/Reduce.cuh.

Not modelled: tensors of more than 2**31 elements (PyTorch splits them and may accumulate in a buffer
of its own).
"""

from dataclasses import dataclass

from vrambudget.engine.autograd import record
from vrambudget.engine.context import context
from vrambudget.engine.dtypes import DType
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_bytes, numel

_WARP = 32
_MAX_THREADS = 512  # ReduceConfig::MAX_NUM_THREADS
_ACCUMULATOR_BYTES = 4  # float32 partial sums, for 16-bit inputs too


def sum_to_size(x: Tensor, shape: Shape) -> Tensor:
    """Sum the broadcast dimensions of a gradient away (at::sum_to). Unknown to autograd."""
    lead = x.ndim - len(shape)
    summed = [i for i in range(x.ndim) if i < lead or (shape[i - lead] == 1 and x.shape[i] != 1)]
    if not summed:
        return x
    context.operation = "sum"
    y = empty(shape, x.dtype)
    on_last = (x.ndim - 1) in summed
    outputs = numel(shape)
    with_partial_sums(outputs, x.numel // outputs, on_last=on_last, row=x.shape[-1])
    return y


def with_partial_sums(outputs: int, inputs: int, *, on_last: bool, row: int) -> None:
    """Allocate and free what a sum of `inputs` elements into each of `outputs` needs besides."""
    buffer_bytes, semaphore_bytes = partial_sums(outputs, inputs, on_last=on_last, row=row)
    if buffer_bytes:
        buffer = empty_bytes(buffer_bytes)
        semaphores = empty_bytes(semaphore_bytes)
        del semaphores, buffer


def partial_sums(outputs: int, inputs: int, *, on_last: bool, row: int) -> tuple[int, int]:
    """Return the bytes of the buffer and of the semaphores, zeros where the sum is not split.

    `on_last`: the innermost dimension is summed; else `row`, its size, decides whether loads are
    vectorised along the output.
    """
    vector = 1
    if on_last:
        width, height = inputs, outputs
        if outputs == 1 and inputs > 128:  # noqa: PLR2004 - "dim0 > 128": vectorised along the input
            width //= 4
    else:
        vector = 4 if row % 4 == 0 else 2 if row % 2 == 0 else 1  # get_output_vec_size
        width, height = outputs // vector, inputs
    block = _block(width, height, _MAX_THREADS // vector)

    step_input, step_output = (block.width, 1) if on_last else (1, block.width)
    values = -(-inputs // step_input)
    if values < min(block.height * 16, 256):
        return 0, 0  # each warp has an output of its own: nothing to share between blocks
    step_input *= block.height
    values = -(-inputs // step_input)
    device = context.device
    target = device.multiprocessors * (device.max_threads_per_multiprocessor // block.threads)
    grid = -(-(outputs // vector) // step_output)
    if values < 256 or grid > target:  # noqa: PLR2004 - max_values_per_thread
        return 0, 0
    blocks = max(min(-(-target // grid), -(-values // 16)), -(-values // 256))
    if blocks == 1:
        return 0, 0
    size = _ACCUMULATOR_BYTES * outputs * blocks
    if not on_last:
        size *= block.width * vector
    return size, 4 * grid


def mean_last(x: Tensor) -> Tensor:
    """Return the mean over the last dimension: [..., C] -> [..., 1]."""
    context.operation = "mean"
    y = empty((*x.shape[:-1], 1), x.dtype)
    with_partial_sums(y.numel, x.shape[-1], on_last=True, row=x.shape[-1])
    shape = x.shape

    def backward(dy: Tensor) -> Tensor:
        return empty(shape, dy.dtype)  # the gradient expanded, divided by C

    return record("mean", y, inputs=(x,), backward=backward)


@dataclass(frozen=True, slots=True)
class _Block:
    width: int
    height: int

    @property
    def threads(self) -> int:
        return self.width * self.height


def _block(width: int, height: int, most: int) -> _Block:
    """Return the thread block for a problem of width x height (set_block_dimension)."""
    widest, tallest = (_power_of_two(min(n, most)) for n in (width, height))
    across = min(widest, _WARP)
    down = min(tallest, most // across)
    return _Block(min(widest, most // down), down)


def _power_of_two(n: int) -> int:
    return 1 << (max(n, 1).bit_length() - 1)


def sum_all(x: Tensor, dtype: DType) -> Tensor:
    """Return the sum of all elements as a scalar, unknown to autograd."""
    context.operation = "sum"
    y = empty((), dtype)
    with_partial_sums(1, x.numel, on_last=True, row=1)
    return y
