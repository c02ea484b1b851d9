"""What distances between rows make in backward: one gradient for each pair, which is summed.

    cdist    x1 [B, P, M], x2 [B, R, M]    buffer [B, R, P, M]
    pdist    x [N, M]                      buffer [N - 1, N, M]

Source: aten/src/ATen/native/cuda/DistanceKernel.cu (cdist_backward_kernel_impl,
pdist_backward_kernel_impl).
"""

from collections.abc import Callable
from math import prod
from typing import Any

from vrambudget.engine.tensor import empty
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.traced.counted import dtype_of


def _cdist_backward(args: Any, result: Any) -> None:
    _, x1, x2 = args[:3]
    batch = prod(result.shape[:-2])
    pairs = empty((batch, x2.shape[-2], x1.shape[-2], x1.shape[-1]), dtype_of(x1.dtype))
    with_partial_sums(pairs, (1,), accumulator=max(4, x1.element_size()))
    del pairs


def _pdist_backward(args: Any, result: Any) -> None:
    rows, width = result.shape
    if rows < 2:  # noqa: PLR2004 - no pair
        return
    pairs = empty((rows - 1, rows, width), dtype_of(args[1].dtype))
    with_partial_sums(pairs, (0,), accumulator=max(4, result.element_size()))
    del pairs


RULES: dict[str, Callable[[Any, Any], None]] = {
    "_cdist_backward": _cdist_backward,
    "_pdist_backward": _pdist_backward,
}
"""By an operation's name."""
