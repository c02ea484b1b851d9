"""SmolLM3 as transformers writes it (models/smollm3/modeling_smollm3.py).

Llama whose every fourth layer has no rotary positions, and with `use_sliding_window` a window.
"""

from typing import Literal

from vrambudget.config.settings import Size
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.decoder import LayerType
from vrambudget.models.parts.decoder_layers import MLP, Attention, DecoderLayer
from vrambudget.models.parts.layers import CheckpointedLayer
from vrambudget.models.parts.rotary import Rotary
from vrambudget.models.parts.windows import LayerTypesConfig

Flags = tuple[int, ...]


class WithoutPositions(Attention):
    """SmolLM3Attention of a layer that is not in `no_rope_layers`."""

    def rotate(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Leave both as they are."""
        del rotary
        return query, key


class SmolLM3Config(LayerTypesConfig):
    """transformers' SmolLM3Config, with its defaults."""

    model_type: Literal["smollm3"] = "smollm3"
    pad_token_id: int | None = 128004
    vocab_size: Size = 128256
    hidden_size: Size = 2048
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 36
    num_attention_heads: Size = 16
    num_key_value_heads: Size | None = 4
    max_position_embeddings: Size = 32768
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = True
    use_sliding_window: bool = False
    no_rope_layers: Flags | None = None
    no_rope_layer_interval: Size = 4

    followed_in = ("5.17", "5.23", "5.24")
    ignored_keys = LayerTypesConfig.ignored_keys | {"max_window_layers"}

    @property
    def rotates(self) -> list[bool]:
        """Whether each layer has rotary positions."""
        count, interval = self.num_hidden_layers, self.no_rope_layer_interval
        usual = [(i + 1) % interval != 0 for i in range(count)]
        return usual if self.no_rope_layers is None else list(map(bool, self.no_rope_layers))

    @property
    def usual_layer_kinds(self) -> list[LayerType]:
        """A window in layers without positions, if asked for."""
        slides = self.use_sliding_window and self.sliding_window is not None
        return [
            "sliding_attention" if slides and not rotates else "full_attention"
            for rotates in self.rotates
        ]

    def make_layers(self) -> list[CheckpointedLayer]:
        """Return all layers, their weights allocated."""
        return [self._layer(kind=Attention if r else WithoutPositions) for r in self.rotates]

    def _layer(self, kind: type[Attention]) -> DecoderLayer:
        """SmolLM3DecoderLayer."""
        bias = self.attention_bias
        return DecoderLayer(
            self, kind(self, qkv_bias=bias, out_bias=bias), MLP(self, bias=self.mlp_bias)
        )
