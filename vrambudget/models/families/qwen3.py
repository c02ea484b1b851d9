"""Qwen3, dense, as transformers writes it (models/qwen3/modeling_qwen3.py).

Llama with an RMSNorm over each head of q and k, and heads of a width of their own.
"""

from typing import Literal

from vrambudget.config.settings import Size
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.decoder_layers import MLP, Attention, DecoderLayer, RMSNorm
from vrambudget.models.parts.windows import LaterLayersSlide
from vrambudget.ops.shape import transpose, view


class NormedAttention(Attention):
    """Qwen3Attention."""

    def __init__(self, config: DecoderConfig, *, bias: bool) -> None:
        super().__init__(config, qkv_bias=bias, out_bias=bias)
        self.q_norm = RMSNorm(self.head_dim)
        self.k_norm = RMSNorm(self.head_dim)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, C] -> [B, H, T, D], [B, Hkv, T, D] twice."""
        query = transpose(self.q_norm(self._by_head(self.q_proj(hidden_states))), 1, 2)
        key = transpose(self.k_norm(self._by_head(self.k_proj(hidden_states))), 1, 2)
        return query, key, self.heads(self.v_proj(hidden_states))

    def _by_head(self, x: Tensor) -> Tensor:
        """[B, T, H * D] -> [B, T, H, D]."""
        return view(x, *x.shape[:2], -1, self.head_dim)


class Qwen3Config(LaterLayersSlide):
    """transformers' Qwen3Config, with its defaults."""

    model_type: Literal["qwen3"] = "qwen3"
    vocab_size: Size = 151936
    hidden_size: Size = 4096
    intermediate_size: Size = 22016
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 32
    head_dim: Size | None = 128
    max_position_embeddings: Size = 32768
    attention_bias: bool = False

    special_tokens = 1
    followed_in = ("4.57", "5.17", "5.23", "5.24")

    def layer(self) -> DecoderLayer:
        """Qwen3DecoderLayer."""
        attention = NormedAttention(self, bias=self.attention_bias)
        return DecoderLayer(self, attention, MLP(self))
