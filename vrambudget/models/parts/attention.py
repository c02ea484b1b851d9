"""How transformers' models attend: by torch's sdpa, or by single operations (`eager`).

    query [B, H, Sq, D], key and value [B, Hkv, Sk, D] -> [B, Sq, H, D], weights [B, H, Sq, Sk]

`eager` hands its weights (the probabilities) out as well, and so does each attention module: the
layer binds them to `_`, so they live until the layer's forward returns.

Source: integrations/sdpa_attention.py; `eager_attention_forward` of modeling_llama.py, which most
families share. A family whose own differs hands it in.
"""

from typing import Protocol

from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.attention import scaled_dot_product_attention
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import add, mul_scalar, tanh
from vrambudget.ops.linear import matmul
from vrambudget.ops.shape import (
    contiguous,
    expand,
    narrowed,
    open_slices,
    reshape,
    transpose,
    unsqueeze,
)
from vrambudget.ops.softmax import softmax

Attended = tuple[Tensor, Tensor | None]
"""The output, and the weights where they exist."""


class EagerAttention(Protocol):
    """A family's eager_attention_forward."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, dropout_p: float
    ) -> Attended:
        """[B, H, Sq, D] -> [B, Sq, H, D] and the weights."""


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout_p: float,
    soft_caps: bool = False,
) -> Attended:
    """Scores and probabilities [B, H, Sq, Sk], the softmax in float32; Gemma 2 caps the scores."""
    groups = query.shape[1] // key.shape[1]
    key_states = repeat_kv(key, groups)
    value_states = repeat_kv(value, groups)
    if soft_caps:
        weights = soft_capped(mul_scalar(matmul(query, transpose(key_states, 2, 3))))
    else:
        weights = mul_scalar(matmul(query, transpose(key_states, 2, 3)))
    if mask is not None:
        weights = add(weights, mask)
    weights = to(softmax(weights, dtype=float32), query.dtype)
    weights = dropout(weights, dropout_p)
    output = matmul(weights, value_states)
    return contiguous(transpose(output, 1, 2)), weights


def soft_capped(x: Tensor) -> Tensor:
    """Return tanh(x / cap) * cap."""
    x = mul_scalar(x)
    x = tanh(x)
    return mul_scalar(x)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout_p: float,
    eager: EagerAttention = eager_attention,
) -> Attended:
    """Attend by the job's implementation; outside training `dropout_p` is 0."""
    if context.options.attention == "eager":
        return eager(query, key, value, mask, dropout_p=dropout_p)
    groups = query.shape[1] // key.shape[1]
    enable_gqa = groups > 1 and mask is None and key.shape[-1] <= 256  # noqa: PLR2004
    if groups > 1 and not enable_gqa:
        key = repeat_kv(key, groups)
        value = repeat_kv(value, groups)
    is_causal = mask is None and query.shape[2] > 1
    if is_causal and key.shape[2] > query.shape[2]:  # a prompt, in a static cache
        key, value = (narrowed(x, 2, query.shape[2]) for x in (key, value))
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        mask=mask,
        dropout=dropout_p,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
    )
    return contiguous(transpose(output, 1, 2)), None


def repeat_kv(x: Tensor, groups: int) -> Tensor:
    """[B, Hkv, S, D] -> [B, Hkv * groups, S, D], a copy unless groups is 1."""
    if groups == 1:
        return x
    B, H, S, D = x.shape
    repeated = expand(unsqueeze(open_slices(x, 4), 2), B, H, groups, S, D)  # [:, :, None, :, :]
    return reshape(repeated, B, H * groups, S, D)
