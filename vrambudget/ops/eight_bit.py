"""8-bit weights as bitsandbytes stores them (LLM.int8), and the product with one.

    codes     [O, I] int8         a weight's rows, each over its own largest magnitude
    scales    [O] float32         those magnitudes

    y = x @ (codes * scales).T    x is quantised to int8 for it, row by row
    dx = dy @ dequantised         the weight itself requires no gradient

A product casts x [R, I] to float16 (where it is not), writes its codes [R, I] and the rows'
magnitudes [R], and looks for values of 6.0 or more: |x| in float16, where it is large as bool, and
whether any is, which is read back. The codes' product is [R, O] in int32, then in float16, then in
x's type. Where x needs a gradient, it stays with the graph, not with what autograd saved: it
outlives backward, and checkpointing does not let it go. Backward makes the weight in x's type.

Source: bitsandbytes 0.50.2: autograd/_functions.py (MatMul8bitLt), nn/modules.py (Int8Params,
Linear8bitLt), backends/cuda/ops.py (int8_vectorwise_quant, int8_linear_matmul, int8_mm_dequant),
backends/default/ops.py (int8_mixed_scaled_mm, int8_scaled_mm). The product itself is cuBLASLt's,
by a handle of bitsandbytes' own that has no workspace in PyTorch's allocator.
Not modelled: columns of x with a value of 6.0 or more, see `outlier_bytes`; other versions.
"""

from dataclasses import dataclass

from vrambudget.dtypes import bool_, float16, float32, int8, int32, int64
from vrambudget.engine.autocast import to
from vrambudget.engine.autograd import record
from vrambudget.engine.context import no_grad
from vrambudget.engine.tensor import Shape, Tensor
from vrambudget.ops.creation import made
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.ops.shape import contiguous, reshape
from vrambudget.ops.workspaces import cublas_workspace

_DIVIDES_FEATURES = 4
"""cuBLASLt multiplies int8 only where the inner dimension is a multiple of it."""


@dataclass(frozen=True, slots=True)
class EightBit:
    """A quantised weight [O, I] and the magnitudes of its rows [O]."""

    shape: Shape
    codes: Tensor
    scales: Tensor


def quantise(shape: Shape) -> EightBit:
    """Return a weight [O, I] in 8 bit; it comes from main memory in float16."""
    halves = made("to", shape, float16)
    scales = made("int8_vectorwise_quant", (shape[0],), float32)
    codes = made("int8_vectorwise_quant", shape, int8)
    del halves
    return EightBit(shape, codes, scales)


def linear_8bit(x: Tensor, weight: EightBit, bias: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias: [..., I], [O, I], [O] -> [..., O]; only x may have a gradient."""
    x_shape, dtype = x.shape, x.dtype
    with no_grad():
        rows = reshape(x, -1, x_shape[-1])
        y = reshape(_product(rows, weight, bias), *x_shape[:-1], weight.shape[0])

    def backward(dy: Tensor) -> Tensor:
        dy = contiguous(reshape(dy, -1, dy.shape[-1]))
        dequantised = made("to", weight.shape, dtype)
        made("mul", weight.scales.shape, float32)  # freed at once: nobody holds it
        dx = made("matmul_8bit_backward", x_shape, dtype)
        cublas_workspace()
        del dequantised, dy
        return dx

    y = record("matmul_8bit", y, inputs=(x,), backward=backward)
    if y.node is not None:
        y.node.attributes = (rows.storage,)
    return y


def outlier_bytes(rows: int, out_features: int, itemsize: int) -> int:
    """Return what a product takes more for each column of x that has a value of 6.0 or more.

    Its index, the column of x [R], and that of the weight [O], in x's type, beside the codes'
    product; they are multiplied and added to it. Where x needs a gradient, its column is kept.
    Source: backends/default/ops.py (int8_mixed_scaled_mm).
    """
    return (rows + out_features) * itemsize + int64.itemsize


def _product(x: Tensor, weight: EightBit, bias: Tensor | None) -> Tensor:
    """[R, I] -> [R, O], in x's type."""
    codes, magnitudes = _quantised(x)
    shape = x.shape[0], weight.shape[0]
    product = made("int8_linear_matmul", shape, int32)
    if x.shape[1] % _DIVIDES_FEATURES:
        _multiply_in_float32(codes, weight, shape)
    y = made("int8_mm_dequant", shape, float16)
    y = to(y, x.dtype)
    del product, codes, magnitudes, bias  # the bias is added in place
    return y


def _quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes of x [R, I] and its rows' magnitudes."""
    halves = to(x, float16)
    magnitudes = made("int8_vectorwise_quant", x.shape[:1], float32)
    codes = made("int8_vectorwise_quant", x.shape, int8)
    absolute = made("abs", x.shape, float16)
    is_large = made("ge", x.shape, bool_)
    del absolute
    any_is = made("any", (), bool_)
    with_partial_sums(is_large, (0, 1), accumulator=1)
    del any_is
    if x.shape[0] > 1:
        made("index_put_", (), int8)  # zeros for no column; freed at once
    del halves, is_large
    return codes, magnitudes


def _multiply_in_float32(codes: Tensor, weight: EightBit, shape: Shape) -> None:
    numbers = made("float", codes.shape, float32), made("float", weight.shape, float32)
    product = made("matmul", shape, float32)
    cublas_workspace()
    del numbers
    in_integers = made("to", shape, int32)
    del product, in_integers  # copied into the result
