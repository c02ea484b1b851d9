"""Qwen2 and Qwen2.5 as transformers writes them (models/qwen2/modeling_qwen2.py).

Llama with biases at q, k and v; with `use_sliding_window` the layers from `max_window_layers` on
see a window only.
"""

from typing import Literal

from vrambudget.config.settings import Size
from vrambudget.models.parts.decoder_layers import MLP, Attention, DecoderLayer
from vrambudget.models.parts.windows import LaterLayersSlide


class Qwen2Config(LaterLayersSlide):
    """transformers' Qwen2Config, with its defaults."""

    model_type: Literal["qwen2"] = "qwen2"
    vocab_size: Size = 151936
    hidden_size: Size = 4096
    intermediate_size: Size = 22016
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 32
    max_position_embeddings: Size = 32768

    special_tokens = 1
    followed_in = ("4.57", "5.17", "5.23", "5.24")
    ignored_keys = LaterLayersSlide.ignored_keys | {"use_mrope"}

    def layer(self) -> DecoderLayer:
        """Qwen2DecoderLayer."""
        attention = Attention(self, qkv_bias=True, out_bias=False)
        return DecoderLayer(self, attention, MLP(self))
