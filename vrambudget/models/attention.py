"""The two ways in which transformers' models attend (integrations/sdpa_attention.py and `eager`).

    query [B, H, Sq, D], key and value [B, Hkv, Sk, D] -> [B, Sq, H, D]
"""

from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.attention import scaled_dot_product_attention
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import add, mul_scalar
from vrambudget.ops.linear import matmul
from vrambudget.ops.shape import contiguous, expand, reshape, transpose, view
from vrambudget.ops.softmax import softmax


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout_p: float,
    is_causal: bool = True,
) -> Tensor:
    """Attend by the job's implementation."""
    if context.options.attention == "sdpa":
        return _sdpa(query, key, value, mask, dropout_p=dropout_p, is_causal=is_causal)
    return _eager(query, key, value, mask, dropout_p=dropout_p)


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout_p: float,
    is_causal: bool,
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    enable_gqa = groups > 1 and mask is None and key.shape[-1] <= 256  # noqa: PLR2004
    if groups > 1 and not enable_gqa:
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        mask=mask,
        dropout=dropout_p,
        is_causal=is_causal and mask is None and query.shape[2] > 1,
        enable_gqa=enable_gqa,
    )
    return contiguous(transpose(output, 1, 2))


def _eager(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, dropout_p: float
) -> Tensor:
    """eager_attention_forward as modeling_gpt2.py writes it."""
    weights = mul_scalar(matmul(query, transpose(key, -1, -2)))
    if mask is not None:
        weights = add(weights, mask)
    weights = softmax(weights)
    weights = to(weights, value.dtype)
    weights = dropout(weights, dropout_p, training=True)
    output = matmul(weights, value)
    return transpose(output, 1, 2)


def repeat_kv(x: Tensor, groups: int) -> Tensor:
    """[B, Hkv, S, D] -> [B, Hkv * groups, S, D], a copy."""
    if groups == 1:
        return x
    B, H, S, D = x.shape
    return reshape(expand(view(x, B, H, 1, S, D), B, H, groups, S, D), B, H * groups, S, D)
