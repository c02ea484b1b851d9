"""Seed-OSS as transformers writes it (models/seed_oss/modeling_seed_oss.py): 36B.

Llama with biases at q, k and v, and dropout after attention and after the MLP.
"""

from typing import Literal

from vrambudget.config.settings import Probability, Size
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.decoder_layers import MLP, Attention, DecoderLayer


class SeedOssConfig(DecoderConfig):
    """transformers' SeedOssConfig, with its defaults."""

    model_type: Literal["seed_oss"] = "seed_oss"
    pad_token_id: int | None = 1
    vocab_size: Size = 155_136
    hidden_size: Size = 4096
    intermediate_size: Size = 27648
    num_hidden_layers: Size = 64
    num_attention_heads: Size = 80
    num_key_value_heads: Size | None = 8
    head_dim: Size | None = 128
    max_position_embeddings: Size = 524_288
    attention_bias: bool = True
    attention_out_bias: bool = False
    attention_dropout: Probability = 0.1
    residual_dropout: Probability = 0.1
    mlp_bias: bool = False

    followed_in = ("5.17",)

    def layer(self) -> DecoderLayer:
        """SeedOssDecoderLayer."""
        out_bias = self.attention_out_bias
        attention = Attention(self, qkv_bias=self.attention_bias, out_bias=out_bias)
        mlp = MLP(self, bias=self.mlp_bias)
        attention.residual_dropout = mlp.residual_dropout = self.residual_dropout
        return DecoderLayer(self, attention, mlp)
