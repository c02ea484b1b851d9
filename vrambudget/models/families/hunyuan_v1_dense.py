"""Hunyuan, dense, as transformers writes it (models/hunyuan_v1_dense): 0.5B to 7B.

Llama with an RMSNorm over each head of q and k, once they are rotated.

With an `alpha`, dynamic rotary positions are made by the default's formula, of another base.
"""

from typing import Literal

from vrambudget.config.settings import Size
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.decoder_layers import MLP, Attention, DecoderLayer, RMSNorm
from vrambudget.models.parts.frequencies import FREQUENCIES
from vrambudget.models.parts.rotary import Rotary, RotaryEmbedding
from vrambudget.ops.shape import contiguous, reshape


class HunYuanAttention(Attention):
    """HunYuanDenseV1Attention."""

    def __init__(self, config: "HunYuanDenseV1Config") -> None:
        bias = config.attention_bias
        super().__init__(config, qkv_bias=bias, out_bias=bias)
        self.query_layernorm = RMSNorm(self.head_dim)
        self.key_layernorm = RMSNorm(self.head_dim)

    def forward(
        self,
        hidden_states: Tensor,
        rotary: Rotary,
        mask: Tensor | None,
        past_key_values: Cache | None = None,
    ) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        query, key, value = self.project(hidden_states)
        query, key = self.rotate(query, key, rotary)
        query = self.query_layernorm(query)
        key = self.key_layernorm(key)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        output, weights = self.attend(query, key, value, mask)
        output = contiguous(reshape(output, *output.shape[:2], -1))
        output = self.o_proj(output)
        return output, weights


class AlphaRotaryEmbedding(RotaryEmbedding):
    """HunYuanDenseV1RotaryEmbedding of `rope_type` dynamic with an `alpha`."""

    def computed(self) -> Tensor:
        """Return the frequencies, made anew."""
        return FREQUENCIES["default"](self.dim)

    def initialise(self) -> None:
        """_init_weights computes them twice: as for every model, and for an `alpha`."""
        for _ in range(2):
            again = FREQUENCIES[self.rope_type](self.dim)
            del again


class HunYuanDenseV1Config(DecoderConfig):
    """transformers' HunYuanDenseV1Config, with its defaults."""

    model_type: Literal["hunyuan_v1_dense"] = "hunyuan_v1_dense"
    pad_token_id: int | None = 0
    vocab_size: Size = 290_943
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    max_position_embeddings: Size = 2048
    attention_bias: bool = False

    followed_in = ("5.17",)
    ignored_keys = DecoderConfig.ignored_keys | {"eod_token_id", "use_qk_norm", "use_cla"}

    def rotary(self) -> RotaryEmbedding:
        """HunYuanDenseV1RotaryEmbedding."""
        has_alpha = self.rope_type == "dynamic" and self.rope.get("alpha")
        kind = AlphaRotaryEmbedding if has_alpha else RotaryEmbedding
        return kind(self.rotary_width, self.rope_type)

    def layer(self) -> DecoderLayer:
        """HunYuanDenseV1DecoderLayer."""
        return DecoderLayer(self, HunYuanAttention(self), MLP(self))
