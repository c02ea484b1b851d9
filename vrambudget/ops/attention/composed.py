"""The math kernel: attention composed of matrix products and a softmax, in float32.

    q, k, v    [B, H, S, D]     16-bit ones are cast to float32; k and v of fewer heads repeated
    q, k^T     times sqrt of the scale, each a copy; kept as the products lay them out
    bias       [Sq, Sk]         with is_causal: a bool triangle, then a bias, made at every call
    scores     [B, H, Sq, Sk]   the bias is added in place; gone after the softmax
    weights    [B, H, Sq, Sk]   kept; the softmax also makes a bool of this size to find rows that
                                are masked throughout, and its backward a product of this size
    dropout    a mask of one byte and a result for each weight, kept

Source: aten/src/ATen/native/transformers/attention.cpp (_scaled_dot_product_attention_math,
_safe_softmax); aten/src/ATen/native/cuda/SoftMax.cu (softmax_backward_cuda_out). Torch 2.11.
Not modelled: torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp.
"""

from vrambudget.dtypes import bool_, float32
from vrambudget.engine.autocast import autocast, to
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty, empty_like
from vrambudget.ops.attention.layout import dense_like
from vrambudget.ops.attention.mask import additive
from vrambudget.ops.dropout import dropout as drop
from vrambudget.ops.linear import matmul
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.ops.shape import contiguous, expand, transpose, view


def composed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    *,
    dropout: float,
    is_causal: bool,
    enable_gqa: bool,
) -> Tensor:
    """Return attention's output [B, H, Sq, Dv]."""
    dtype = q.dtype
    with autocast(None):
        # Each of these lives until the function returns, as PyTorch's local variables do.
        q_acc, k_acc, v_acc = to(q, float32), to(k, float32), to(v, float32)
        scaled = _scale(q_acc)
        if is_causal:
            bias = _causal_bias(q.shape[2], k.shape[2])
        heads = q.shape[1] if enable_gqa else k.shape[1]
        keys, values = _repeat_heads(k_acc, heads), _repeat_heads(v_acc, heads)
        weights = drop(_weights(scaled, keys, bias), dropout)
        returned = to(weights, dtype)  # PyTorch's function returns the weights as well
        out = to(matmul(weights, values), dtype)
        del returned
        return out


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Return a copy with one head for each query head (repeat_interleave), or x itself."""
    B, H, S, D = x.shape
    if heads == H:
        return x
    repeated = expand(view(x, B, H, 1, S, D), B, H, heads // H, S, D)
    return view(contiguous(repeated), B, heads, S, D)


def _weights(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    scores = matmul(q, _scale(transpose(k, -2, -1)))
    if bias is not None:
        scores = _add_in_place(scores, bias)
    return _safe_softmax(scores)


def _scale(x: Tensor) -> Tensor:
    context.operation = "mul"
    return record("mul", dense_like(x, x.dtype), inputs=(x,), backward=_like)


def _like(dy: Tensor) -> Tensor:
    return dense_like(dy, dy.dtype)


def _causal_bias(Sq: int, Sk: int) -> Tensor:
    context.operation = "tril"
    ones = empty((Sq, Sk), bool_)
    triangle = empty((Sq, Sk), bool_)
    del ones
    return additive(triangle, float32)


def _add_in_place(x: Tensor, bias: Tensor) -> Tensor:
    y = Tensor(x.shape, x.dtype, x.storage)
    return record("add", y, inputs=(x, bias), backward=lambda dy: (dy, dy))


def _safe_softmax(x: Tensor) -> Tensor:
    context.operation = "softmax"
    y = empty_like(x)
    masked = empty(x.shape, bool_)
    masked_rows = empty((*x.shape[:-1], 1), bool_)
    with_partial_sums(masked, (-1,), accumulator=1)
    zero = empty((), x.dtype)
    del zero, masked_rows, masked
    kept = keep(y, when=x.requires_grad)

    def backward(dy: Tensor) -> Tensor:
        dx = empty_like(dy)
        product = empty_like(dy)
        del product
        return dx

    return record("softmax", y, inputs=(x,), saved=(kept,), backward=backward)
