"""Operations that CUDA has a kernel for only in a simpler form: PyTorch calls it several times.

    roll    one dimension of a contiguous tensor; without dimensions, of all elements in a row

Source: aten/src/ATen/native/cuda/TensorTransformations.cu (roll_cuda), TensorTransformations.h
(roll_common).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch


def kernel_by_kernel(name: str, args: Any) -> Callable[[], torch.Tensor] | None:
    """Return what runs an aten operation as its kernels do, None where it is one kernel."""
    if name != "roll":
        return None
    x, shifts, dims = args[0], args[1], args[2] if len(args) > 2 else ()  # noqa: PLR2004 - its places
    if len(dims) == 1 and x.is_contiguous():
        return None
    return partial(_rolled, x, shifts, dims)


def _rolled(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int]) -> torch.Tensor:
    if not dims:
        return torch.roll(x.contiguous().view(-1), list(shifts), [0]).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = torch.roll(x.contiguous(), [shift], [dim])
    return x
