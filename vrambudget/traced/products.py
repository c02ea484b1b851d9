"""What products of two matrices make besides their results.

Source: aten/src/ATen/native/cuda/Blas.cpp.
"""

from typing import Any

from vrambudget.ops.temporaries import readable
from vrambudget.ops.workspaces import cublas_workspace
from vrambudget.traced.tensor import with_layouts

_EPILOGUES = {"addmm", "_addmm_activation"}
PRODUCTS = {"mm", "addmv", "mv", "dot", "baddbmm", "addbmm", *_EPILOGUES}
"""By a matrix, or by a batch of them where `bmm` has a rule of its own."""


def product(name: str, args: Any) -> None:
    """Allocate and free what a product by cuBLAS needs besides its result; of nothing, nothing.

    A bias [O] is added by cuBLASLt, unless it is expanded or the matrix a single row or column.
    """
    left, right = [x for x in args if hasattr(x, "stride")][-2:]
    if not (left.numel() and right.numel()):
        return
    copies = [readable(with_layouts(right)), readable(with_layouts(left))]
    has_bias = name in _EPILOGUES and tuple(args[0].shape) == tuple(right.shape[1:])
    cublas_workspace(epilogue=has_bias and 1 not in right.shape)
    del copies
