"""A low-rank update added to a stack of weights in one kernel: W + lhs @ rhs * scaling (baddbmm).

    W [E, O, I] requires no gradient    lhs [E, O, r] and rhs [E, r, I] keep each other

A factor that lies in memory so that no row and no column of it is contiguous is copied for each
product that reads it; the copy is freed after the product.

Source: aten/src/ATen/native/cuda/Blas.cpp (baddbmm_out_cuda_impl, prepare_batch_matrix_for_cublas);
FunctionsManual.cpp (maybe_multiply); derivatives.yaml (baddbmm).
Not modelled: W that requires a gradient.
"""

from vrambudget.dtypes import DType
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_like
from vrambudget.ops.workspaces import cublas_workspace


def add_low_rank(weight: Tensor, lhs: Tensor, rhs: Tensor, *, scaling: float) -> Tensor:
    """Return weight + lhs @ rhs * scaling for every matrix of the stack."""
    kept = keep(rhs, when=lhs.requires_grad), keep(lhs, when=rhs.requires_grad)
    copied = [x.shape for x in (lhs, rhs) if _is_copied(x)]
    y = _product("baddbmm", weight.shape, weight.dtype, copied)
    lhs_shape, rhs_shape, dtype = lhs.shape, rhs.shape, weight.dtype
    copies = [[x.shape] if _is_copied(x) else [] for x in (lhs, rhs)]

    def gradient(shape: Shape, copied: list[Shape]) -> Tensor:
        plain = _product("baddbmm_backward", shape, dtype, copied)
        return plain if scaling == 1 else empty_like(plain)

    def backward(dy: Tensor) -> tuple[None, Tensor, Tensor]:
        del dy
        dlhs = gradient(lhs_shape, copies[1])  # dy @ rhs.T
        drhs = gradient(rhs_shape, copies[0])  # lhs.T @ dy
        return None, dlhs, drhs

    return record("baddbmm", y, inputs=(None, lhs, rhs), saved=kept, backward=backward)


def _product(operation: str, shape: Shape, dtype: DType, copied: list[Shape]) -> Tensor:
    context.operation = operation
    y = empty(shape, dtype)
    copies = [empty(each, dtype) for each in copied]
    cublas_workspace()
    del copies
    return y


def _is_copied(x: Tensor) -> bool:
    return 1 not in x.actual_strides()[-2:]
