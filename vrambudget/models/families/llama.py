"""Llama as transformers writes it (models/llama/modeling_llama.py).

Llama 1 to 3, TinyLlama, SmolLM2. Its parts are those of `decoder.py`, which are modelled on it.
"""

from typing import Literal

from vrambudget.config.settings import Size
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.decoder_layers import MLP, Attention, DecoderLayer


class LlamaConfig(DecoderConfig):
    """transformers' LlamaConfig, with its defaults."""

    model_type: Literal["llama"] = "llama"
    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    max_position_embeddings: Size = 2048
    attention_bias: bool = False
    mlp_bias: bool = False

    followed_in = ("4.57", "5.17", "5.23", "5.24")
    heads_share_width = True  # validate_architecture of configuration_llama.py

    def layer(self) -> DecoderLayer:
        """LlamaDecoderLayer."""
        bias = self.attention_bias
        attention = Attention(self, qkv_bias=bias, out_bias=bias)
        return DecoderLayer(self, attention, MLP(self, bias=self.mlp_bias))
