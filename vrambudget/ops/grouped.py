"""Grouped matrix product: consecutive rows of x, each group by a matrix of its own.

    x        [S, I]      kept if weight needs a gradient
    weight   [E, O, I]   kept if x needs a gradient; [E, I, O] where it is transposed
    offsets  [E]         where each group ends, int32; kept
    y        [S, O]

How many rows each group has does not affect memory, unless it has none: on a virtual GPU, where
offsets read as zeros, PyTorch 2.15 requests no workspace. Three implementations:

    bfloat16 on Hopper, B200   one CUTLASS kernel; its arguments and tensor maps come and go
    else, from sm80 on         a product per group, into y
    before sm80                transformers' own operation of the same kind; it keeps both operands
                               and makes both gradients, wanted or not

Source: aten/src/ATen/native/cuda/GroupedBlas.cpp (_grouped_mm_cuda), GroupMM.cu
(bf16bf16_grouped_gemm_impl_sm90_sm100), GroupedMMUtils.h (_grouped_mm_fallback); derivatives.yaml
(_grouped_mm); transformers integrations/moe.py (_can_use_grouped_mm, _grouped_mm_fallback).
Not modelled: widths that are no multiple of 16 bytes, which the kernels refuse; the workspaces of
B200's kernel, assumed to be Hopper's.
"""

from vrambudget.dtypes import DType, bfloat16
from vrambudget.engine.autocast import to
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, ShapeError, Tensor, empty, empty_bytes
from vrambudget.ops.workspaces import cublas_workspace

_TENSOR_MAPS = 4 * 128  # bytes per multiprocessor: of x, weight, y as input and y as output


def grouped_linear(
    x: Tensor, weight: Tensor, offsets: Tensor, *, is_transposed: bool = False
) -> Tensor:
    """Return each group's x @ weight.T: [S, I], [E, O, I] -> [S, O]. Raises ShapeError.

    `is_transposed`: the weight is [E, I, O].
    """
    x = to(x, weight.dtype)
    features, out_features = weight.shape[1:] if is_transposed else weight.shape[:0:-1]
    if x.shape[1] != features:
        raise ShapeError(f"grouped product of {list(x.shape)} by {list(weight.shape)}")
    if context.platform.compute_capability < (8, 0):
        return _by_transformers(x, weight, offsets, out_features)
    kept = (
        keep(x, when=weight.requires_grad),
        keep(weight, when=x.requires_grad),
        keep(offsets, when=x.requires_grad or weight.requires_grad),
    )
    y = _product("grouped_mm", (x.shape[0], out_features), weight.dtype, weight.shape[0])
    x_shape, weight_shape, dtype = x.shape, weight.shape, x.dtype
    needs_x, needs_weight = x.requires_grad, weight.requires_grad

    def gradient(shape: Shape) -> Tensor:
        return _product("grouped_mm_backward", shape, dtype, weight_shape[0])

    def backward(dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        del dy
        dweight = gradient(weight_shape) if needs_weight else None
        dx = gradient(x_shape) if needs_x else None
        return dx, dweight

    return record("grouped_mm", y, inputs=(x, weight), saved=kept, backward=backward)


def _product(operation: str, shape: Shape, dtype: DType, groups: int) -> Tensor:
    context.operation = operation
    y = empty(shape, dtype)
    if dtype is bfloat16 and context.platform.compute_capability[0] in (9, 10):
        even = groups + groups % 2  # pointers are aligned to 16 bytes
        # Per group: pointers to x, weight and y; three strides of 8 bytes; m, n, k of 4 bytes.
        arguments = empty_bytes(3 * 8 * even + (3 * 8 + 3 * 4) * groups)
        tensor_maps = empty_bytes(_TENSOR_MAPS * context.platform.multiprocessors)
        del tensor_maps, arguments
    else:
        cublas_workspace()
    return y


def _by_transformers(x: Tensor, weight: Tensor, offsets: Tensor, out_features: int) -> Tensor:
    kept = keep(x), keep(weight)
    context.operation = "grouped_mm_fallback"
    y = empty((x.shape[0], out_features), x.dtype)
    x_shape, weight_shape, dtype = x.shape, weight.shape, x.dtype

    def backward(dy: Tensor) -> tuple[Tensor, Tensor]:
        del dy
        return empty(x_shape, dtype), empty(weight_shape, dtype)

    y = record("grouped_mm_fallback", y, inputs=(x, weight), saved=kept, backward=backward)
    if y.node is not None:
        y.node.attributes = (offsets.storage,)
    return y
