"""Granite as transformers writes it (models/granite/modeling_granite.py): Granite 3 and 4, dense.

Llama with numbers that embeddings, what a layer adds, and logits are multiplied by.
"""

from typing import Any, Literal

from vrambudget.config.settings import Size
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.decoder import CausalLM, DecoderConfig, Model
from vrambudget.models.parts.decoder_layers import MLP, Attention, DecoderLayer, attended
from vrambudget.ops.elementwise import add, mul_scalar


class GraniteModel(Model):
    """GraniteModel multiplies what it looks up."""

    def embedded(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, C]."""
        return mul_scalar(super().embedded(input_ids))


class GraniteLayer(DecoderLayer):
    """GraniteDecoderLayer."""

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, **attended(given))
        hidden_states = add(residual, mul_scalar(hidden_states))
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return add(residual, mul_scalar(hidden_states))


class GraniteForCausalLM(CausalLM):
    """GraniteForCausalLM: logits are divided by a number."""

    def logits(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, V]."""
        return mul_scalar(super().logits(hidden_states))


class GraniteConfig(DecoderConfig):
    """transformers' GraniteConfig, with its defaults."""

    model_type: Literal["granite"] = "granite"
    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    max_position_embeddings: Size = 2048
    attention_bias: bool = False
    mlp_bias: bool = False

    followed_in = ("5.17", "5.23", "5.24")
    tasks = ("causal-lm",)
    ignored_keys = DecoderConfig.ignored_keys | {
        *("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")
    }

    def layer(self) -> GraniteLayer:
        """GraniteDecoderLayer."""
        bias = self.attention_bias
        attention = Attention(self, qkv_bias=bias, out_bias=bias)
        return GraniteLayer(self, attention, MLP(self, bias=self.mlp_bias))

    def decoder(self) -> GraniteModel:
        """GraniteModel."""
        return GraniteModel(self)

    def causal_lm(self) -> CausalLM:
        """GraniteForCausalLM."""
        return GraniteForCausalLM(self)
