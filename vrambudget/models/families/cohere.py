"""Cohere's Command R as transformers writes it (models/cohere/modeling_cohere.py).

A LayerNorm of single operations, without a bias; attention and MLP side by side on its output;
rotary positions of neighbouring elements, in float32; logits times a number.
"""

from typing import Any, Literal

from vrambudget.config.settings import Size
from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.families.granite import GraniteForCausalLM
from vrambudget.models.parts.decoder import CausalLM, DecoderConfig
from vrambudget.models.parts.decoder_layers import MLP, Attention, Norm, attended
from vrambudget.models.parts.layers import CheckpointedLayer
from vrambudget.models.parts.rotary import Rotary, rotate, rotate_pairs
from vrambudget.ops.elementwise import add, add_scalar, mul, pow_scalar, rsqrt, sub
from vrambudget.ops.reduce import mean_last
from vrambudget.ops.shape import transpose, view


class CohereLayerNorm(Norm):
    """CohereLayerNorm: all of it in float32; of heads [.., H, D] each has a weight of its own."""

    def __init__(self, *shape: int) -> None:
        self.weight = Parameter(shape, context.options.dtype)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        input_dtype = hidden_states.dtype
        hidden_states = to(hidden_states, float32)
        mean = mean_last(hidden_states)
        variance = mean_last(pow_scalar(sub(hidden_states, mean)))
        hidden_states = mul(sub(hidden_states, mean), rsqrt(add_scalar(variance)))
        hidden_states = mul(to(self.weight, float32), hidden_states)
        return to(hidden_states, input_dtype)


class CohereAttention(Attention):
    """CohereAttention."""

    def __init__(self, config: "CohereConfig") -> None:
        bias = config.attention_bias
        super().__init__(config, qkv_bias=bias, out_bias=bias)
        self.q_norm = self.k_norm = None
        if config.use_qk_norm:
            self.q_norm = CohereLayerNorm(config.num_attention_heads, self.head_dim)
            self.k_norm = CohereLayerNorm(config.kv_heads, self.head_dim)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, C] -> [B, H, T, D], [B, Hkv, T, D] twice."""
        projections = self.q_proj, self.k_proj, self.v_proj
        query, key, value = (self._by_head(p(hidden_states)) for p in projections)
        if self.q_norm is not None and self.k_norm is not None:
            query = self.q_norm(query)
            key = self.k_norm(key)
        return transpose(query, 1, 2), transpose(key, 1, 2), transpose(value, 1, 2)

    def _by_head(self, x: Tensor) -> Tensor:
        return view(x, *x.shape[:2], -1, self.head_dim)

    def rotate(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Rotate [B, H, T, D] and [B, Hkv, T, D] in pairs, in float32."""
        dtype = query.dtype
        query, key = to(query, float32), to(key, float32)
        q_embed, k_embed = rotate(query, key, *rotary, rotate_pairs)
        return to(q_embed, dtype), to(k_embed, dtype)


class CohereLayer(CheckpointedLayer):
    """CohereDecoderLayer."""

    def __init__(self, config: "CohereConfig", self_attn: Module, mlp: Module) -> None:
        self.self_attn = self_attn
        self.mlp = mlp
        self.input_layernorm = config.norm(config.hidden_size)

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        attention, _ = self.self_attn(hidden_states=hidden_states, **attended(given))
        mlp = self.mlp(hidden_states)
        return add(add(residual, attention), mlp)


class CohereConfig(DecoderConfig):
    """transformers' CohereConfig, with its defaults."""

    model_type: Literal["cohere"] = "cohere"
    pad_token_id: int | None = 0
    vocab_size: Size = 256_000
    hidden_size: Size = 8192
    intermediate_size: Size = 22528
    num_hidden_layers: Size = 40
    num_attention_heads: Size = 64
    max_position_embeddings: Size = 8192
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    use_qk_norm: bool = False

    followed_in = ("5.17",)
    tasks = ("causal-lm",)
    norm = CohereLayerNorm
    ignored_keys = DecoderConfig.ignored_keys | {"logit_scale"}

    def layer(self) -> CohereLayer:
        """CohereDecoderLayer."""
        return CohereLayer(self, CohereAttention(self), MLP(self))

    def causal_lm(self) -> CausalLM:
        """CohereForCausalLM: logits times a number, as Granite's."""
        return GraniteForCausalLM(self)
