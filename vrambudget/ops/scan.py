"""Cumulative sums, and the temporary storage of the one over a single row.

    cumsum    y [..., T] in `dtype`, to which x is cast first; autograd does not follow it

Rows of their own are scanned by one kernel; a tensor that is one row goes through CUB.

Source: aten/src/ATen/native/cuda/ScanUtils.cuh (scan_dim), ReduceOps.cpp (cumsum).
Not modelled: other dimensions than the last, tensors with a gradient.
"""

from vrambudget.dtypes import DType
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty, empty_bytes
from vrambudget.ops.cub import inclusive_sum_bytes


def cumsum(x: Tensor, dtype: DType) -> Tensor:
    """Return the sums of x [..., T] up to each place of the last dimension."""
    context.operation = "cumsum"
    y = empty(x.shape, dtype)
    cast = None if x.dtype is dtype else empty(x.shape, dtype)
    if x.numel == x.shape[-1]:
        empty_bytes(inclusive_sum_bytes(x.numel, dtype.itemsize))  # freed at once: nobody holds it
    del cast
    return y
