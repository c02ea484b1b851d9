"""Falcon's linear layers, and its attention: three ways to take q, k and v from one projection.

    multi query     [B, T, H + 2, D]       keys and values by an index, one head
    groups          [B, T, G, H / G + 2, D] the same, then repeated for each head of the group
    plain           [B, T, H, 3, D]        views

Source: models/falcon/modeling_falcon.py (FalconLinear, FalconAttention) of transformers 5.17.
"""

from typing import TYPE_CHECKING

from vrambudget.dtypes import DType, float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.layers import Linear
from vrambudget.models.parts.rotary import Rotary, rotate
from vrambudget.ops.attention import scaled_dot_product_attention
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import add
from vrambudget.ops.fill import mul_number_
from vrambudget.ops.indexing import index_one
from vrambudget.ops.linear import matmul, rows_by_matrix
from vrambudget.ops.shape import expand, permute, reshape, select, slice_dim, transpose, view
from vrambudget.ops.softmax import softmax

if TYPE_CHECKING:
    from vrambudget.models.families.falcon import FalconConfig


class FalconLinear(Linear):
    """FalconLinear: the bias is added to the product, not within it."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        hidden_states = rows_by_matrix(x, transpose(self.weight, 0, 1))
        return hidden_states if self.bias is None else add(hidden_states, self.bias)


class Attention(Module):
    """FalconAttention."""

    layer_idx = 0

    def __init__(self, config: "FalconConfig") -> None:
        width, heads = config.hidden_size, config.num_attention_heads
        self.num_heads, self.head_dim = heads, config.head_width
        self.num_kv_heads = config.kv_heads
        self.is_grouped = config.new_decoder_architecture
        self.is_multi_query = config.multi_query and not self.is_grouped
        self.attention_dropout = config.attention_dropout
        rows = heads + 2 * self.num_kv_heads
        self.query_key_value = FalconLinear(width, rows * self.head_dim, bias=config.bias)
        self.dense = FalconLinear(width, width, bias=config.bias)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor,
        alibi: Tensor | None,
        rotary: Rotary,
        past_key_values: Cache | None,
    ) -> Attended:
        """[B, T, C] -> [B, T, C], and the weights of eager attention."""
        fused_qkv = self.query_key_value(hidden_states)
        query, key, value = self._split_heads(fused_qkv)
        query, key, value = (self._by_head(x) for x in (query, key, value))
        if alibi is None:
            query, key = rotate(query, key, *rotary)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        output, weights = self._attend(
            query, key, value, mask=mask, alibi=alibi, dtype=hidden_states.dtype
        )
        B, H, T, D = query.shape
        output = reshape(permute(view(output, B, H, T, D), 0, 2, 1, 3), B, T, H * D)
        output = self.dense(output)
        del fused_qkv  # held until here
        return output, weights[-1] if weights else None

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor,
        alibi: Tensor | None,
        dtype: DType,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """[B, H, T, D] -> the same, and what forward holds of scores, the probabilities last."""
        p = self.attention_dropout if self.training and alibi is not None else 0.0
        if context.options.attention == "sdpa":
            return scaled_dot_product_attention(query, key, value, mask=mask, dropout=p), ()
        matmul_result = matmul(query, transpose(key, 2, 3))
        if alibi is None:
            scores = mul_number_(matmul_result)
            weights = softmax(add(scores, mask), dtype=dtype)
            return matmul(weights, value), (weights,)
        scores = to(matmul_result, float32)
        B, H = query.shape[:2]
        logits = mul_number_(add(scores, view(alibi, B, H, 1, -1)))
        weights = dropout(softmax(add(logits, mask), dtype=dtype), p)
        return matmul(weights, value), (matmul_result, scores, logits, weights)

    def _split_heads(self, fused_qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, ...] -> [B, T, H, D], and [B, T, 1 or H, D] twice."""
        B, T, _ = fused_qkv.shape
        if self.is_multi_query:
            fused = view(fused_qkv, B, T, self.num_heads + 2, self.head_dim)
            query = slice_dim(fused, 2, self.num_heads)
            return query, index_one(fused, 2), index_one(fused, 2)
        if not self.is_grouped:
            fused = view(fused_qkv, B, T, self.num_heads, 3, self.head_dim)
            return select(fused, 3), select(fused, 3), select(fused, 3)
        group = self.num_heads // self.num_kv_heads
        qkv = view(fused_qkv, B, T, -1, group + 2, self.head_dim)
        query = slice_dim(qkv, 3, group)
        key, value = index_one(qkv, 3), index_one(qkv, 3)
        key, value = expand(key, *query.shape), expand(value, *query.shape)
        query, key, value = (reshape(x, B, T, -1, self.head_dim) for x in (query, key, value))
        return query, key, value

    def _by_head(self, x: Tensor) -> Tensor:
        """[B, T, H, D] -> [B, H, T, D]."""
        B, T, heads, D = x.shape
        return reshape(transpose(x, 1, 2), B, heads, T, D)
