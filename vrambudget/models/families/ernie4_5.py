"""ERNIE 4.5, dense, as transformers writes it (models/ernie4_5/modeling_ernie4_5.py): 0.3B.

Llama with rotary positions of neighbouring elements, in float32 up to the cast back.
"""

from typing import Literal

from vrambudget.config.settings import Size
from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.tensor import Tensor
from vrambudget.models.families.olmo2 import Olmo2RotaryEmbedding
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.decoder_layers import MLP, Attention, DecoderLayer
from vrambudget.models.parts.rotary import Rotary, interleaved, rotate_pairs
from vrambudget.ops.elementwise import add, mul
from vrambudget.ops.shape import unsqueeze


class Ernie45Attention(Attention):
    """Ernie4_5Attention."""

    def rotate(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Rotate [B, H, T, D] and [B, Hkv, T, D] in pairs, in float32."""
        original_dtype = query.dtype
        cos, sin = rotary
        cos, sin = (unsqueeze(x, 1) for x in (interleaved(cos), interleaved(sin)))
        q_embed = _rotated(query, cos, sin)
        k_embed = _rotated(key, cos, sin)
        return to(q_embed, original_dtype), to(k_embed, original_dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return add(mul(to(x, float32), cos), mul(to(rotate_pairs(x), float32), sin))


class Ernie45Config(DecoderConfig):
    """transformers' Ernie4_5Config, with its defaults."""

    model_type: Literal["ernie4_5"] = "ernie4_5"
    pad_token_id: int | None = 0
    vocab_size: Size = 103_424
    hidden_size: Size = 1024
    intermediate_size: Size = 3072
    num_hidden_layers: Size = 18
    num_attention_heads: Size = 16
    num_key_value_heads: Size | None = 2
    head_dim: Size | None = 128
    max_position_embeddings: Size = 131_072
    tie_word_embeddings: bool = True
    use_bias: bool = False

    followed_in = ("5.17",)
    tasks = ("causal-lm",)
    rotary_embedding = Olmo2RotaryEmbedding  # cos and sin in float32

    def layer(self) -> DecoderLayer:
        """Ernie4_5DecoderLayer."""
        attention = Ernie45Attention(self, qkv_bias=self.use_bias, out_bias=self.use_bias)
        attention.attention_dropout = 0.0
        return DecoderLayer(self, attention, MLP(self, bias=self.use_bias))
