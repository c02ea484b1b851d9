"""What matrix products make besides their results: copies of matrices that cuBLAS cannot read.

cuBLAS reads a matrix whose rows or columns lie one after the other, at distances of at least their
length. Any other, an expanded one for instance, is copied first; that on the right first.

Source: aten/src/ATen/native/cuda/Blas.cpp, cublasCommonArgs.h (prepare_matrix_for_cublas,
prepare_batch_matrix_for_cublas).
"""

from typing import Any

from vrambudget.engine.tensor import Tensor, empty
from vrambudget.ops.workspaces import bmm_workspace, cublas_workspace
from vrambudget.traced.counted import dtype_of

_MATRIX = 2
_EPILOGUES = {"addmm", "_addmm_activation"}
PRODUCTS = {"mm", "addmv", "mv", "dot", "baddbmm", "addbmm", *_EPILOGUES}
"""By a matrix, or by a batch of them where `bmm` has a rule of its own."""


def product(name: str, args: Any) -> None:
    """Allocate and free what a product by cuBLAS needs besides its result; of nothing, nothing.

    A bias [O] is added by cuBLASLt, unless the matrix is a single row or column.
    """
    left, right = [x for x in args if hasattr(x, "stride")][-2:]
    if not (left.numel() and right.numel()):
        return
    copies = [_copy(right), _copy(left)]
    has_bias = name in _EPILOGUES and args[0].dim() == 1
    cublas_workspace(epilogue=has_bias and 1 not in right.shape)
    del copies


def batched_product(args: Any, result: Any) -> None:
    """Allocate and free what `bmm` needs besides its result."""
    del result
    copies = [_copy(x) for x in reversed(args[:2])]
    bmm_workspace(args[0].shape[2])
    del copies


def _copy(x: Any) -> Tensor | None:
    """Return the copy that is made of a matrix, or of a batch of them, if one is."""
    if x.dim() < _MATRIX:
        return None
    rows, columns = x.stride()[-2:]
    height, width = x.shape[-2:]
    is_readable = (columns == 1 and rows >= max(1, width)) or (
        rows == 1 and columns >= max(1, height)
    )
    is_packed = x.is_contiguous() if x.dim() > _MATRIX else _is_dense(x)
    if is_readable or (is_packed and rows and columns):
        return None
    return empty(tuple(x.shape), dtype_of(x.dtype))


def _is_dense(x: Any) -> bool:
    no_storage: Any = None  # never read
    return Tensor(tuple(x.shape), dtype_of(x.dtype), no_storage, tuple(x.stride())).is_dense
