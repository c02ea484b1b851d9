"""Elements that a boolean mask selects, and their way back.

    index_mask      x [..., *rest], mask [...] -> [S, *rest]     keeps the mask
    masked_scatter  source [S], mask [...]     -> [...]          keeps the mask

Each looks for the places where the mask is true, and reads back how many there are: the caller says
it. The mask's places are looked for anew in backward, in which index_mask adds to zeros like x as
every index does, and masked_scatter selects from the gradient.

masked_scatter writes into a copy of what it is called on (zeros here), with the running count of
the mask as int64.

Source: aten/src/ATen/native/IndexingUtils.h (expandTensors), TensorAdvancedIndexing.cpp
(masked_scatter), cuda/IndexKernel.cpp (masked_select_out_cuda_impl, masked_scatter__cuda);
FunctionsManual.cpp (masked_scatter_backward).
"""

from vrambudget.dtypes import int64
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_bytes, numel
from vrambudget.ops.creation import made
from vrambudget.ops.cub import exclusive_sum_bytes
from vrambudget.ops.indexing import accumulating_buffers
from vrambudget.ops.selection import places


def index_mask(x: Tensor, mask: Tensor, count: int) -> Tensor:
    """Return x[mask], of which `count` are true: [*M, ...], [*M] -> [count, ...]."""
    kept = keep(mask, when=x.requires_grad)
    found = places(mask.shape, count)
    context.operation = "index"
    y = empty((count, *x.shape[mask.ndim :]), x.dtype)
    del found
    shape, dtype, over = x.shape, x.dtype, mask.shape

    def backward(dy: Tensor) -> Tensor:
        dx = empty(shape, dtype)
        found = [places(over, count)]
        accumulating_buffers(numel(over), (count,) * len(over), dy, found)
        return dx

    return record("index", y, inputs=(x,), saved=(kept,), backward=backward)


def scattering_buffers(shape: Shape, mask: Tensor) -> None:
    """Allocate and free what masked_scatter_ into [*shape] counts the places of its mask in."""
    counts = empty(shape, int64)
    is_copied = mask.shape != shape or not mask.is_contiguous
    rows = empty(shape, mask.dtype) if is_copied else None
    empty_bytes(exclusive_sum_bytes(numel(shape)))  # freed at once: nobody holds it
    del counts, rows


def masked_scatter(source: Tensor, mask: Tensor) -> Tensor:
    """Return zeros like the mask with `source` where it is true: [S], [*M] -> [*M]."""
    zeros = made("new_zeros", mask.shape, source.dtype)
    kept = keep(mask, when=source.requires_grad)
    context.operation = "masked_scatter"
    y = empty(mask.shape, source.dtype)
    scattering_buffers(mask.shape, mask)
    del zeros
    shape: Shape = mask.shape
    count = source.numel

    def backward(dy: Tensor) -> Tensor:
        found = places(shape, count)
        dsource = empty((count,), dy.dtype)
        del found
        return dsource

    return record("masked_scatter", y, inputs=(source,), saved=(kept,), backward=backward)
