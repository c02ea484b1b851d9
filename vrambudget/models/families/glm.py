"""GLM-4 9B of 2024 as transformers writes it (models/glm/modeling_glm.py).

Llama with Phi-3's MLP, no bias at attention's output, and rotary positions of neighbouring
elements, over half of a head.
"""

from typing import Annotated, Literal

from vrambudget.config.settings import Field, Size
from vrambudget.engine.tensor import Tensor
from vrambudget.models.families.phi3 import MLP
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.decoder_layers import Attention, DecoderLayer
from vrambudget.models.parts.rotary import Rotary, interleaved, rotate_pairs, rotate_partially


class GlmAttention(Attention):
    """GlmAttention."""

    def __init__(self, config: "GlmLike") -> None:
        super().__init__(config, qkv_bias=config.attention_bias, out_bias=False)

    def rotate(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Rotate the first elements of each head, in pairs."""
        cos, sin = rotary
        cos, sin = interleaved(cos), interleaved(sin)
        return rotate_partially(query, key, cos, sin, join_last=True, turned=rotate_pairs)


class GlmLike(DecoderConfig):
    """What both generations' configurations share."""

    pad_token_id: int | None = 151_329
    vocab_size: Size = 151_552
    hidden_size: Size = 4096
    intermediate_size: Size = 13696
    num_hidden_layers: Size = 40
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 2
    head_dim: Size | None = 128
    max_position_embeddings: Size = 131_072
    attention_bias: bool = True
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 0.5

    special_tokens = 1

    @property
    def rotary_width(self) -> int:
        """How many of a head's elements carry positions."""
        return int(self.head_width * self.partial_rotary_factor_of(self.partial_rotary_factor))


class GlmConfig(GlmLike):
    """transformers' GlmConfig, with its defaults."""

    model_type: Literal["glm"] = "glm"

    followed_in = ("5.17",)

    def layer(self) -> DecoderLayer:
        """GlmDecoderLayer."""
        return DecoderLayer(self, GlmAttention(self), MLP(self))
