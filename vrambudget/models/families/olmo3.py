"""OLMo 3 as transformers writes it (models/olmo3/modeling_olmo3.py): 7B, 32B.

OLMo 2 with a window in three layers of four, and rotary frequencies of their own for both kinds.
"""

from collections.abc import Iterator
from typing import Any, Literal

from vrambudget.config.settings import Size
from vrambudget.models.families.gemma3 import RotaryByKind
from vrambudget.models.families.olmo2 import (
    Olmo2Attention,
    Olmo2RMSNorm,
    Olmo2RotaryEmbedding,
    PostNormLayer,
)
from vrambudget.models.parts.decoder import LayerType
from vrambudget.models.parts.decoder_layers import MLP
from vrambudget.models.parts.windows import LayerTypesConfig


class Olmo3Config(LayerTypesConfig):
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

    begins_with_token = False
    followed_in = ("5.17",)
    norm = Olmo2RMSNorm

    @property
    def rope(self) -> dict[str, Any]:
        """The parameters of the layers without a window: those with one have the default."""
        by_kind = (self.rope_parameters or {}).get("full_attention")
        return self.rope_scaling or by_kind or {}

    @property
    def usual_layer_kinds(self) -> list[LayerType]:
        """A window in all layers but every fourth."""
        layers = range(self.num_hidden_layers)
        return ["sliding_attention" if (i + 1) % 4 else "full_attention" for i in layers]

    @property
    def mask_kinds(self) -> list[LayerType]:
        """Both, whatever the layers need."""
        return ["full_attention", "sliding_attention"]

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.sliding_window is None:
            yield "sliding_window is null, which OLMo 3 does not know"

    def rotary(self) -> RotaryByKind:
        """Olmo3RotaryEmbedding."""
        types: dict[LayerType, str] = {
            kind: self.rope_type if kind == "full_attention" else "default"
            for kind in self.layer_kinds
        }
        return RotaryByKind(self.rotary_width, types, Olmo2RotaryEmbedding)

    def layer(self) -> PostNormLayer:
        """Olmo3DecoderLayer."""
        return PostNormLayer(self, Olmo2Attention(self, bias=self.attention_bias), MLP(self))
