"""Mistral as transformers writes it (models/mistral/modeling_mistral.py): Mistral 7B, Nemo, Small.

Llama without biases; all layers see a window of `sliding_window` tokens if it is set.
"""

from typing import Literal

from vrambudget.config.settings import Size
from vrambudget.models.parts.decoder_layers import MLP, Attention, DecoderLayer
from vrambudget.models.parts.windows import SlidingConfig


class MistralConfig(SlidingConfig):
    """transformers' MistralConfig, with its defaults."""

    model_type: Literal["mistral"] = "mistral"
    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: Size = 14336
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 8
    max_position_embeddings: Size = 131072
    sliding_window: Size | None = 4096

    followed_in = ("4.57", "5.17", "5.23", "5.24")

    def layer(self) -> DecoderLayer:
        """MistralDecoderLayer."""
        attention = Attention(self, qkv_bias=False, out_bias=False)
        return DecoderLayer(self, attention, MLP(self))
