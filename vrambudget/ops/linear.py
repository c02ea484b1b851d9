"""Matrix products: linear, addmm, matmul.

    x       [..., I]   kept if weight needs a gradient   (dweight = dy.T @ x)
    weight  [O, I]     kept if x needs a gradient        (dx = dy @ weight)
    bias    [O]        never kept                        (dbias = dy summed over rows)
    y       [..., O]   whoever reads y decides whether it is kept

Under autocast all operands are read as low-precision copies, and those are kept. The copies are
made from the last argument to the first, the order in which the compiler evaluates the arguments of
the wrapped call.

`linear` with a bias and a contiguous x runs as addmm, else as a matrix product and an add. The
order of gradients is that of the generated code: alphabetical by argument name (addmm: mat1, mat2,
then the bias, which the engine sums; mm and bmm: mat2 before self).

Source: aten/src/ATen/native/Linear.cpp, LinearAlgebra.cpp (matmul); tools/autograd/derivatives.yaml
(addmm, mm, bmm); aten/src/ATen/native/cuda/Blas.cpp.
"""

from vrambudget.dtypes import DType
from vrambudget.engine.autocast import lower_precision
from vrambudget.engine.autograd import Saved, keep, record
from vrambudget.engine.checkpoint import results_of
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, ShapeError, Tensor, empty
from vrambudget.ops.shape import expand, flatten_rows, reshape, view
from vrambudget.ops.workspaces import bmm_workspace, cublas_workspace

_MATRIX = 2  # dimensions


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias: [..., I], [O, I], [O] -> [..., O]. Raises ShapeError."""
    if context.linear is not None:
        return context.linear(x, weight, bias)
    bias = None if bias is None else lower_precision(bias)
    weight = lower_precision(weight)
    x = lower_precision(x)
    if x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"linear of {list(x.shape)} by a weight {list(weight.shape)}")
    if bias is None:
        weight = _transposed(weight)
    features = weight.shape[0]
    if x.ndim == _MATRIX:  # no view: a second gradient of x is added to the first in place
        return _product(x, weight, bias, features, transposed=True)
    y = _product(flatten_rows(x), weight, bias, features, transposed=True)
    return view(y, *x.shape[:-1], features)


def _transposed(weight: Tensor) -> Tensor:
    """Return a leaf's weight.t(), only for autograd's order; its dimensions stay.

    Without a bias it is made before x is flattened: in backward x's gradient moves on before the
    weight's, which matters where that is added to one of an earlier pass.
    """
    if weight.node is not None or not weight.requires_grad:
        return weight
    t = weight.viewed(weight.shape, weight.strides)
    return record("t", t, inputs=(weight,), backward=lambda dy: dy)


def addmm(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight + bias: [N, I], [I, O], [O] -> [N, O] (torch.addmm, HF's Conv1D)."""
    weight = lower_precision(weight)
    x = lower_precision(x)
    bias = lower_precision(bias)
    if x.shape[-1] != weight.shape[0]:
        raise ShapeError(f"addmm of {list(x.shape)} by a weight {list(weight.shape)}")
    return _product(x, weight, bias, weight.shape[1], transposed=False)


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Return the product [n, k] @ [k, m] -> [n, m] (torch.matmul of two matrices)."""
    b = lower_precision(b)
    a = lower_precision(a)
    if a.shape[1] != b.shape[0]:
        raise ShapeError(f"product of {list(a.shape)} and {list(b.shape)}")
    return _product(a, b, None, b.shape[1], transposed=False)


def rows_by_matrix(x: Tensor, b: Tensor) -> Tensor:
    """Return x @ b: [..., I], [I, O] -> [..., O] (torch.matmul, which folds x's rows to one)."""
    b = lower_precision(b)
    x = lower_precision(x)
    y = _product(flatten_rows(x), b, None, b.shape[1], transposed=b.strides is not None)
    return view(y, *x.shape[:-1], b.shape[1])


def _product(
    x: Tensor, weight: Tensor, bias: Tensor | None, features: int, *, transposed: bool
) -> Tensor:
    """Multiply; a `transposed` weight gets its gradient as a view, grad.t().mm(x).t().

    That lies as the weight does (mm_mat2_backward in FunctionsManual.cpp).
    """
    name = "mm" if bias is None else "addmm"
    kept: tuple[Saved, ...] = (
        keep(x, when=weight.requires_grad),
        keep(weight.detach() if transposed and weight.is_swapped else weight, when=x.requires_grad),
    )
    context.operation = name

    def multiplied() -> tuple[Tensor]:
        y = empty((x.shape[0], features), x.dtype)
        cublas_workspace(epilogue=bias is not None and 1 not in weight.shape)
        return (y,)

    (y,) = results_of(name, multiplied)
    x_shape, weight_shape, dtype = x.shape, weight.shape, x.dtype
    weight_strides = weight.strides if transposed else None
    needs_x, needs_weight = x.requires_grad, weight.requires_grad

    def weight_gradient() -> Tensor:
        gradient = _gradient(weight_shape, dtype)
        gradient.strides, gradient.is_view = weight_strides, transposed
        return gradient

    if bias is None:

        def backward(_dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
            dweight = weight_gradient() if needs_weight else None
            dx = _gradient(x_shape, dtype) if needs_x else None
            return dx, dweight

        return record(name, y, inputs=(x, weight), saved=kept, backward=backward)

    def backward_with_bias(dy: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        dx = _gradient(x_shape, dtype) if needs_x else None
        dweight = weight_gradient() if needs_weight else None
        return dy, dx, dweight  # the engine sums dy to the bias' shape; it moves on first

    return record(name, y, inputs=(bias, x, weight), saved=kept, backward=backward_with_bias)


def _gradient(shape: Shape, dtype: DType) -> Tensor:
    gradient = empty(shape, dtype)
    cublas_workspace()
    return gradient


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the batched product [..., n, k] @ [..., k, m] -> [..., n, m] (torch.matmul -> bmm)."""
    b = lower_precision(b)
    a = lower_precision(a)
    *batch, n, k = a.shape
    m = b.shape[-1]
    if b.shape[-2] != k:
        raise ShapeError(f"matmul of {list(a.shape)} by {list(b.shape)}")
    # expand(...).reshape(...): a copy where heads are not laid out one after another
    a3 = reshape(expand(a, *batch, n, k), -1, n, k)
    b3 = reshape(expand(b, *batch, k, m), -1, k, m)
    return view(_bmm(a3, b3), *batch, n, m)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    kept = keep(b, when=a.requires_grad), keep(a, when=b.requires_grad)
    context.operation = "bmm"
    y = empty((a.shape[0], a.shape[1], b.shape[2]), a.dtype)
    bmm_workspace(a.shape[2])
    a_shape, b_shape, dtype = a.shape, b.shape, a.dtype
    needs_a, needs_b = a.requires_grad, b.requires_grad

    def gradient(shape: Shape, inner: int) -> Tensor:
        product = empty(shape, dtype)
        bmm_workspace(inner)
        return product

    def backward(_dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        db = gradient(b_shape, a_shape[1]) if needs_b else None
        da = gradient(a_shape, b_shape[2]) if needs_a else None
        return da, db

    return record("bmm", y, inputs=(a, b), saved=kept, backward=backward)
