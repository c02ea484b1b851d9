"""OLMo 3 as transformers writes it (models/olmo3/modeling_olmo3.py): 7B, 32B.

OLMo 2 with a window in three layers of four, and rotary frequencies of their own for both kinds.
"""

from typing import Literal

from vrambudget.config.settings import Size
from vrambudget.models.families.gemma3 import RotaryByKindConfig
from vrambudget.models.families.olmo2 import (
    Olmo2Attention,
    Olmo2RMSNorm,
    PostNormLayer,
)
from vrambudget.models.parts.decoder import LayerType
from vrambudget.models.parts.decoder_layers import MLP
from vrambudget.models.parts.rotary import Float32RotaryEmbedding


class Olmo3Config(RotaryByKindConfig):
    """transformers' Olmo3Config, with its defaults."""

    model_type: Literal["olmo3"] = "olmo3"
    pad_token_id: int | None = 1
    vocab_size: Size = 50304
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    max_position_embeddings: Size = 2048
    attention_bias: bool = False
    sliding_window: Size | None = 4096

    special_tokens = 1
    followed_in = ("5.17",)
    norm = Olmo2RMSNorm
    rotary_embedding = Float32RotaryEmbedding
    title = "OLMo 3"

    @property
    def usual_layer_kinds(self) -> list[LayerType]:
        """A window in all layers but every fourth."""
        layers = range(self.num_hidden_layers)
        return ["sliding_attention" if (i + 1) % 4 else "full_attention" for i in layers]

    def layer(self) -> PostNormLayer:
        """Olmo3DecoderLayer."""
        return PostNormLayer(self, Olmo2Attention(self, bias=self.attention_bias), MLP(self))
