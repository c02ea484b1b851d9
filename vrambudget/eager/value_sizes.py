"""Operations whose results are as large as values say, which the GPU reads back.

nonzero, masks as an index         what a mask keeps, or is assumed to keep
repeat_interleave                  the sum of the numbers of repeats
unique_consecutive                 how many runs there are
bincount                           the largest number
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vrambudget.eager.gpu_kernels import on
from vrambudget.eager.notes import note_of
from vrambudget.engine.tensor import empty_bytes
from vrambudget.ops.cub import select_bytes
from vrambudget.ops.selection import places

if TYPE_CHECKING:
    from vrambudget.eager.mode import EagerMode

_aten = torch.ops.aten


@on(_aten.nonzero)
def _nonzero(mode: EagerMode, _run: Any, x: Any) -> Any:
    copy = mode.contiguous(x)
    found = mode.fake_of(places(tuple(x.shape), mode.count(x)))
    del copy
    with mode:
        return found.t()


@on(_aten.repeat_interleave)
def _repeat_interleave(mode: EagerMode, run: Any, repeats: Any, output_size: Any = None) -> Any:
    """Make as many indices as the numbers say that are read back (Repeat.h)."""
    if not mode.knows(repeats) or not repeats.numel():
        return run()
    with mode:
        copy, sums = repeats.contiguous(), repeats.cumsum(0)
        if output_size is None:
            output_size = int(note_of(repeats).ordinary().sum())
            (repeats >= 0).all()
        result = repeats.new_empty(output_size)
    del copy, sums
    return result


@on(_aten.unique_consecutive)
def _unique_consecutive(mode: EagerMode, run: Any, x: Any, *rest: Any, **named: Any) -> Any:
    """Make a result as long as x, which shrinks without giving memory back (cuda/UniqueCub.cu)."""
    if any(rest) or any(named.values()) or not mode.knows(x) or not x.numel():
        return run()
    kept = note_of(x).ordinary().unique_consecutive().numel()
    copy = mode.contiguous(x)
    with mode:
        result = x.new_empty(x.numel())
        inverse, counts, length = (x.new_empty(n, dtype=torch.int64) for n in (0, 0, 1))
        empty_bytes(select_bytes(x.numel()))
        result.resize_(kept)
    del copy, length
    return result, inverse, counts


def without_masks(mode: EagerMode, indices: Any) -> list[Any]:
    """Return indices with the places where masks are true (native/IndexingUtils.h)."""
    found: list[Any] = []
    for index in indices:
        if index is None or index.dtype not in {torch.bool, torch.uint8}:
            found.append(index)
            continue
        with mode:
            found += index.nonzero().unbind(1)
    return found


@on(_aten.masked_select)
def _masked_select(mode: EagerMode, _run: Any, x: Any, mask: Any) -> Any:
    """Pick by a mask as an index does (cuda/IndexKernel.cpp, masked_select_out_cuda_impl)."""
    with mode:
        shape = torch.broadcast_shapes(x.shape, mask.shape, (1,))
        return x.expand(shape)[mask if mask.shape == shape else mask.expand(shape)]


@on(_aten.bincount)
def _bincount(mode: EagerMode, _run: Any, x: Any, weights: Any = None, least: int = 0) -> Any:
    """Look for the smallest and the largest, which is read back (cuda/SummaryOps.cu)."""
    with mode:
        for bound in (x.min, x.max):
            bound()
        bins = max(mode.largest(x) + 1, least) if x.numel() else least
        kinds = {None: torch.int64, torch.float32: torch.float32}
        return x.new_zeros(bins, dtype=kinds.get(weights and weights.dtype, torch.float64))
