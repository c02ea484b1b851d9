"""EXAONE 4.0 as transformers writes it (models/exaone4/modeling_exaone4.py): 1.2B, 32B.

Llama with norms after its parts instead of before them, and an RMSNorm over each head of q and k.
Where layers of two kinds alternate, only those with a window have rotary positions.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from vrambudget.config.settings import Field, Size
from vrambudget.engine.tensor import Tensor
from vrambudget.models.families.olmo2 import PostNormLayer
from vrambudget.models.parts.decoder import LayerType
from vrambudget.models.parts.decoder_layers import MLP, Attention, RMSNorm
from vrambudget.models.parts.layers import CheckpointedLayer
from vrambudget.models.parts.rotary import Rotary
from vrambudget.models.parts.windows import LayerTypesConfig


class Exaone4Attention(Attention):
    """Exaone4Attention: q and k are normed by head once all three are viewed."""

    def __init__(self, config: "Exaone4Config", *, rotates: bool) -> None:
        super().__init__(config, qkv_bias=False, out_bias=False)
        self.rotates = rotates
        self.q_norm = RMSNorm(self.head_dim)
        self.k_norm = RMSNorm(self.head_dim)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, C] -> [B, H, T, D], [B, Hkv, T, D] twice."""
        query, key, value = super().project(hidden_states)
        query = self.q_norm(query)
        return query, self.k_norm(key), value

    def rotate(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Rotate [B, H, T, D] and [B, Hkv, T, D], or leave both as they are."""
        return super().rotate(query, key, rotary) if self.rotates else (query, key)


class Exaone4Config(LayerTypesConfig):
    """transformers' Exaone4Config, with its defaults."""

    model_type: Literal["exaone4"] = "exaone4"
    vocab_size: Size = 102_400
    hidden_size: Size = 4096
    intermediate_size: Size = 16384
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 32
    max_position_embeddings: Size = 2048
    sliding_window: Size | None = 4096
    sliding_window_pattern: Annotated[int, Field(ge=0)] | str | None = 4

    followed_in = ("5.17",)

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.sliding_window is None and self.layer_types is None:
            yield "sliding_window is null, for which EXAONE 4 needs layer_types"

    @property
    def usual_layer_kinds(self) -> list[LayerType]:
        """A window in all layers but every fourth."""
        pattern = self.sliding_window_pattern
        every = pattern if isinstance(pattern, int) else 0
        layers = range(self.num_hidden_layers)
        return [
            "sliding_attention" if every and (i + 1) % every else "full_attention" for i in layers
        ]

    def make_layers(self) -> list[CheckpointedLayer]:
        """Return all layers, their weights allocated."""
        return [self._layer(kind) for kind in self.layer_kinds]

    def _layer(self, kind: LayerType) -> PostNormLayer:
        """Exaone4DecoderLayer."""
        rotates = self.sliding_window is None or kind == "sliding_attention"
        return PostNormLayer(self, Exaone4Attention(self, rotates=rotates), MLP(self))
