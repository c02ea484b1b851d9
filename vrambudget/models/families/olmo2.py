"""The parts of OLMo 3 that are OLMo 2's (models/olmo2/modeling_olmo2.py).

Llama's with norms after its parts instead of before them, an RMSNorm over all heads of q and k at
once, and rotary tables in float32, which take q and k up with them until they are cast back.
"""

from typing import Any

from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.decoder_layers import MLP, Attention, Norm, attended
from vrambudget.models.parts.layers import CheckpointedLayer
from vrambudget.models.parts.rotary import Rotary, rotate
from vrambudget.ops.elementwise import add, add_scalar, mul, pow_scalar, rsqrt
from vrambudget.ops.reduce import mean_last


class Olmo2RMSNorm(Norm):
    """Olmo2RMSNorm: the last product in float32 too."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        input_dtype = hidden_states.dtype
        hidden_states = to(hidden_states, float32)
        variance = mean_last(pow_scalar(hidden_states))
        hidden_states = mul(hidden_states, rsqrt(add_scalar(variance)))
        return to(mul(self.weight, hidden_states), input_dtype)


class Olmo2Attention(Attention):
    """Olmo2Attention."""

    def __init__(self, config: DecoderConfig, *, bias: bool) -> None:
        super().__init__(config, qkv_bias=bias, out_bias=bias)
        self.q_norm = Olmo2RMSNorm(config.num_attention_heads * self.head_dim)
        self.k_norm = Olmo2RMSNorm(config.kv_heads * self.head_dim)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, C] -> [B, H, T, D], [B, Hkv, T, D] twice."""
        query = self.q_norm(self.q_proj(hidden_states))
        key = self.k_norm(self.k_proj(hidden_states))
        value = self.v_proj(hidden_states)
        return self.heads(query), self.heads(key), self.heads(value)

    def rotate(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Rotate in float32; both are cast back once both are there."""
        q_embed, k_embed = rotate(query, key, *rotary)
        return to(q_embed, query.dtype), to(k_embed, key.dtype)


class PostNormLayer(CheckpointedLayer):
    """Olmo2DecoderLayer, of the parts that it is given: norms come after them."""

    def __init__(self, config: DecoderConfig, self_attn: Attention, mlp: MLP) -> None:
        self.self_attn = self_attn
        self.mlp = mlp
        self.post_attention_layernorm = config.norm(config.hidden_size)
        self.post_feedforward_layernorm = config.norm(config.hidden_size)

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, **attended(given))
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.post_feedforward_layernorm(hidden_states)
        return add(residual, hidden_states)
