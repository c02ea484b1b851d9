"""Helium as transformers writes it (models/helium/modeling_helium.py): Helium 1 2B.

Llama with rotary positions of neighbouring elements, and norms whose weight is cast to float32.
"""

from collections.abc import Iterator
from typing import Literal

from vrambudget.config.settings import Size
from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.decoder_layers import MLP, Attention, DecoderLayer, Norm
from vrambudget.models.parts.rotary import Rotary, interleaved, rotate, rotate_pairs
from vrambudget.ops.elementwise import add_scalar, mul, pow_scalar, rsqrt
from vrambudget.ops.reduce import mean_last


class HeliumRMSNorm(Norm):
    """HeliumRMSNorm: the weight is cast up, and the product down."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        input_dtype = hidden_states.dtype
        hidden_states = to(hidden_states, float32)
        variance = mean_last(pow_scalar(hidden_states))
        hidden_states = mul(hidden_states, rsqrt(add_scalar(variance)))
        return to(mul(to(self.weight, float32), hidden_states), input_dtype)


class HeliumAttention(Attention):
    """HeliumAttention."""

    def rotate(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Rotate [B, H, T, D] and [B, Hkv, T, D] in pairs."""
        cos, sin = rotary
        cos, sin = interleaved(cos), interleaved(sin)
        return rotate(query, key, cos, sin, rotate_pairs)


class HeliumConfig(DecoderConfig):
    """transformers' HeliumConfig, with its defaults."""

    model_type: Literal["helium"] = "helium"
    pad_token_id: int | None = 3
    vocab_size: Size = 48000
    hidden_size: Size = 2560
    intermediate_size: Size = 7040
    num_hidden_layers: Size = 24
    num_attention_heads: Size = 20
    num_key_value_heads: Size | None = 20
    head_dim: Size | None = 128
    max_position_embeddings: Size = 4096
    attention_bias: bool = False
    mlp_bias: bool = False

    followed_in = ("5.17",)
    norm = HeliumRMSNorm

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.head_width * self.num_attention_heads != self.hidden_size:
            yield (
                f"head_dim * num_attention_heads is {self.head_width * self.num_attention_heads};"
                f" attention's output takes hidden_size = {self.hidden_size}"
            )

    def layer(self) -> DecoderLayer:
        """HeliumDecoderLayer."""
        attention = HeliumAttention(self, qkv_bias=self.attention_bias, out_bias=False)
        return DecoderLayer(self, attention, MLP(self, bias=self.mlp_bias))
