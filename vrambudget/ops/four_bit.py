"""4-bit weights as bitsandbytes stores them, and the product with one.

    packed     n / 2 bytes                  two elements of a weight [O, I], n = O * I
    absmax     [n / 64] float32             one for each block
    code       [16] float32                 what a code stands for; every weight has its own
    double     absmax [n / 64] in a byte each, an absmax of its own for each block of 256, a table
               of 256 values and an offset, all float32

    y = x @ dequantised.T                   x is not kept
    dx = dy @ dequantised                   the weight itself requires no gradient

A product dequantises the weight into a temporary [O, I] of x's type, and so does its backward. With
double quantisation the blocks' absmax in float32 come with it, in forward twice.

Few rows are multiplied without dequantising, in forward (`ops.four_bit_kernels`).

Source: bitsandbytes 0.50.2: functional.py (quantize_4bit, dequantize_4bit), backends/cuda/ops.py
(gemm_4bit, _dequant_linear_fallback), autograd/_functions.py (MatMul4Bit).
Not modelled: other versions' rules.
"""

from dataclasses import dataclass, replace

from vrambudget.dtypes import DType, float32, uint8
from vrambudget.engine.autograd import record
from vrambudget.engine.context import context, no_grad
from vrambudget.engine.tensor import Shape, Tensor, empty, numel
from vrambudget.ops.creation import made
from vrambudget.ops.four_bit_kernels import reads_packed
from vrambudget.ops.linear import linear
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.ops.shape import reshape
from vrambudget.ops.workspaces import cublas_workspace

_BLOCK = 64
_NESTED_BLOCK = 256
_CODES, _NESTED_CODES = 16, 256


@dataclass(frozen=True, slots=True)
class FourBit:
    """A quantised weight: its shape, the type that it was quantised from, and what it consists of.

    `nested`: offset, absmax and table of the blocks' absmax, with double quantisation.
    """

    shape: Shape
    dtype: DType
    packed: Tensor
    absmax: Tensor
    code: Tensor
    nested: tuple[Tensor, ...] = ()


def nested_table() -> Tensor:
    """Return the table that the first double quantisation moves to the device; it stays."""
    return made("nested_table", (_NESTED_CODES,), float32)


def quantise(weight: Tensor, tables: list[Tensor], *, double: bool) -> FourBit:
    """Return a weight [O, I] on the device in 4 bit; `tables` gets the nested table, once."""
    n = weight.numel
    absmax = made("quantize_4bit", (-(-n // _BLOCK),), float32)
    packed = made("quantize_4bit", ((n + 1) // 2, 1), uint8)
    code = made("get_4bit_type", (_CODES,), float32)
    magnitudes = made("abs", (_CODES,), float32)
    largest = made("max", (), float32)
    del magnitudes, largest
    if not double:
        return FourBit(weight.shape, weight.dtype, packed, absmax, code)
    offset = made("mean", (), float32)
    with_partial_sums(absmax, (0,))
    centred = made("sub", absmax.shape, float32)
    if not tables:
        tables.append(nested_table())
    nested_absmax = made("quantize_blockwise", (-(-absmax.numel // _NESTED_BLOCK),), float32)
    in_bytes = made("quantize_blockwise", absmax.shape, uint8)
    table = nested_table()
    del centred, absmax
    nested = (offset, nested_absmax, table)
    return FourBit(weight.shape, weight.dtype, packed, in_bytes, code, nested)


def moved(weight: FourBit) -> FourBit:
    """Return a weight whose scales came to the device; its packed codes come by themselves.

    Source: bitsandbytes/functional.py (QuantState.to).
    """
    code = made("to_device", weight.code.shape, float32)
    absmax = made("to_device", weight.absmax.shape, weight.absmax.dtype)
    nested = tuple(made("to_device", x.shape, float32) for x in weight.nested)
    return replace(weight, code=code, absmax=absmax, nested=nested)


def linear_4bit(x: Tensor, weight: FourBit, bias: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias: [..., I], [O, I], [O] -> [..., O]; only x may have a gradient."""
    with no_grad():
        y = _product(x, weight, bias)
    x_shape = x.shape

    def backward(dy: Tensor) -> Tensor:
        dequantised = _dequantised(weight, again=True)
        dy = reshape(dy, -1, dy.shape[-1])
        context.operation = "matmul_4bit_backward"
        dx = empty(x_shape, dy.dtype)
        cublas_workspace()
        del dequantised
        return dx

    return record("matmul_4bit", y, inputs=(x,), backward=backward)


def _product(x: Tensor, weight: FourBit, bias: Tensor | None) -> Tensor:
    gpu = context.platform.compute_capability, context.platform.multiprocessors
    outputs, inputs = weight.shape
    if reads_packed(numel(x.shape[:-1]), outputs, inputs, x.dtype, gpu):
        return made("gemm_4bit", (*x.shape[:-1], weight.shape[0]), x.dtype)
    dequantised = _dequantised(weight, again=False)
    return linear(x, dequantised[-1], bias)


def _dequantised(weight: FourBit, *, again: bool) -> list[Tensor]:
    """Return the weight [O, I], last, after what lives as long: forward keeps the blocks' absmax.

    Backward (`again`) adds the offset in place and frees them first.
    """
    found = []
    if weight.nested:
        found.append(made("dequantize_blockwise", weight.absmax.shape, float32))
        if not again:
            found.append(made("add", weight.absmax.shape, float32))
    found.append(made("dequantize_4bit", weight.shape, weight.dtype))
    return found[-1:] if again else found
