"""The layers of ModernBERT: x + attention(norm(x)), then x + mlp(norm(x)); the first has one norm.

    Attention    one projection makes q, k and v, which are rotated in float32
    MLP          Wo(act(half) * other half), both halves of Wi(x)

Source: models/modernbert/modeling_modernbert.py of transformers 5.17.
"""

from typing import TYPE_CHECKING

from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended, attend
from vrambudget.models.parts.layers import CheckpointedLayer, Dropout, Embedding, Linear
from vrambudget.models.parts.rotary import Rotary, rotate_half
from vrambudget.ops.elementwise import ACTIVATIONS, add, mul
from vrambudget.ops.shape import contiguous, reshape, split, transpose, unsqueeze, view
from vrambudget.ops.stacking import unbind

if TYPE_CHECKING:
    from vrambudget.models.families.modernbert import ModernBertConfig


class Embeddings(Module):
    """ModernBertEmbeddings."""

    def __init__(self, config: "ModernBertConfig") -> None:
        self.tok_embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.norm = config.layer_norm()
        self.drop = Dropout(config.embedding_dropout)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, C]."""
        hidden_states: Tensor = self.drop(self.norm(self.tok_embeddings(input_ids)))
        return hidden_states


class MLP(Module):
    """ModernBertMLP."""

    def __init__(self, config: "ModernBertConfig") -> None:
        self.Wi = Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.act = ACTIVATIONS[config.hidden_act]
        self.drop = Dropout(config.mlp_dropout)
        self.Wo = Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        both = self.Wi(hidden_states)
        given, gate = split(both, both.shape[-1] // 2, dim=-1)
        del both
        y: Tensor = self.Wo(self.drop(mul(self.act(given), gate)))
        return y


def _rotate(query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb: [B, H, T, D] twice, in float32 until both are there."""
    cos, sin = (unsqueeze(table, 1) for table in rotary)
    q_embed, k_embed = (
        add(mul(to(x, float32), cos), mul(rotate_half(to(x, float32)), sin)) for x in (query, key)
    )
    return to(q_embed, query.dtype), to(k_embed, key.dtype)


class Attention(Module):
    """ModernBertAttention."""

    def __init__(self, config: "ModernBertConfig") -> None:
        width, bias = config.hidden_size, config.attention_bias
        self.head_dim = width // config.num_attention_heads
        self.dropout_p = config.attention_dropout
        self.Wqkv = Linear(width, 3 * width, bias=bias)
        self.Wo = Linear(width, width, bias=bias)
        self.out_drop = Dropout(config.attention_dropout)

    def forward(self, hidden_states: Tensor, rotary: Rotary, mask: Tensor | None) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        qkv = self.Wqkv(hidden_states)
        qkv = view(qkv, *qkv.shape[:2], 3, -1, self.head_dim)
        query, key, value = unbind(qkv, -3)
        query = transpose(query, 1, 2)
        key = transpose(key, 1, 2)
        value = transpose(value, 1, 2)
        query, key = _rotate(query, key, rotary)
        dropout_p = self.dropout_p if self.training else 0.0
        output, weights = attend(query, key, value, mask, dropout_p=dropout_p, is_causal=False)
        output = contiguous(reshape(output, *output.shape[:2], -1))
        output = self.out_drop(self.Wo(output))
        return output, weights


class Layer(CheckpointedLayer):
    """ModernBertEncoderLayer; the first has no norm before its attention."""

    def __init__(self, config: "ModernBertConfig", index: int) -> None:
        self.attn_norm = config.layer_norm() if index else None
        self.attn = Attention(config)
        self.mlp_norm = config.layer_norm()
        self.mlp = MLP(config)
        self.attention_type = config.layer_kinds[index]

    def forward(self, hidden_states: Tensor, mask: Tensor | None, rotary: Rotary) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        normed = hidden_states if self.attn_norm is None else self.attn_norm(hidden_states)
        attn_output, _ = self.attn(normed, rotary=rotary, mask=mask)
        del normed
        hidden_states = add(hidden_states, attn_output)
        return add(hidden_states, self.mlp(self.mlp_norm(hidden_states)))
