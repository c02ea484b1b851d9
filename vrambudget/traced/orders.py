"""What sorts, searches and moments of a tensor allocate besides their results.

    sort              positions, and CUB's buffers (ops.sampling)
    argmax, max       partial results: values with their places
    var, std          partial results: mean, sum of squares, two counts

Each rule returns whether it covers the call.

Source: aten/src/ATen/native/cuda/Sort.cpp (sort_cuda_kernel), ReduceArgMaxKernel.cu,
ReduceMaxValuesKernel.cu, ReduceMomentKernel.cu; native/SharedReduceOps.h (WelfordData).
"""

from collections.abc import Callable
from typing import Any

from vrambudget.dtypes import int64
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.ops.sampling import SORTED_BYTES, sort_buffers
from vrambudget.traced.tensor import dtype_of, with_layouts

_VALUE_AND_PLACE = 2 * int64.itemsize
_WELFORD_BYTES = 16


def _sort(args: Any, result: Any) -> bool:
    x = result[0]
    last = x.dim() - 1
    numbers = [a for a in args[1:] if type(a) is int]
    is_last = x.dim() and (numbers[0] if numbers else -1) in {-1, last}
    if not is_last or not x.is_contiguous() or x.element_size() not in SORTED_BYTES:
        return False
    sort_buffers(tuple(x.shape), dtype_of(x.dtype))
    return True


def _best(args: Any, _result: Any) -> bool:
    x, dim = args[0], args[1] if len(args) > 1 else None
    _reduced(x, (dim,) if isinstance(dim, int) else None, _VALUE_AND_PLACE)
    return True


def _best_along(args: Any, result: Any) -> bool:
    """Find the largest along a dimension with its place, or of all elements without."""
    if len(args) > 1 and isinstance(args[1], int):
        return _best(args, result)
    _reduced(args[0], None, max(4, args[0].element_size()))
    return True


def _moments(args: Any, _result: Any) -> bool:
    dims = args[1] if len(args) > 1 and not isinstance(args[1], bool) else None
    _reduced(args[0], (dims,) if isinstance(dims, int) else dims, _WELFORD_BYTES)
    return True


def _reduced(x: Any, dims: Any, accumulator: int) -> None:
    if x.dim():
        with_partial_sums(with_layouts(x), tuple(dims or range(x.dim())), accumulator=accumulator)


RULES: dict[str, Callable[[Any, Any], bool]] = {
    "sort": _sort,
    "argmax": _best,
    "argmin": _best,
    "max": _best_along,
    "min": _best_along,
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), _moments),
}
"""By an operation's name."""
