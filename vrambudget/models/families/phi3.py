"""Phi-3, Phi-3.5 and Phi-4 as transformers writes them (models/phi3/modeling_phi3.py).

Llama with one projection for q, k, v and one for gate and up, both cut up by views; dropout after
both parts; rotary positions over `partial_rotary_factor` of a head, joined with the rest of it.
"""

from typing import Annotated, Any, Literal

from vrambudget.config.settings import Field, Probability, Size
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.decoder_layers import Attention, DecoderLayer, attended
from vrambudget.models.parts.layers import Dropout, Linear
from vrambudget.models.parts.rotary import Rotary, rotate_partially
from vrambudget.models.parts.windows import SlidingConfig
from vrambudget.ops.elementwise import ACTIVATIONS, add, mul
from vrambudget.ops.shape import contiguous, reshape, slice_last, split


class Phi3Attention(Attention):
    """Phi3Attention."""

    def __init__(self, config: "Phi3Config") -> None:
        self.attention_dropout = config.attention_dropout
        self.head_dim = config.head_width
        self.query_width = config.num_attention_heads * self.head_dim
        self.key_width = config.kv_heads * self.head_dim
        self.o_proj = Linear(self.query_width, config.hidden_size, bias=False)
        self.qkv_proj = Linear(
            config.hidden_size, self.query_width + 2 * self.key_width, bias=False
        )

    def forward(
        self,
        hidden_states: Tensor,
        rotary: Rotary,
        mask: Tensor | None,
        past_key_values: Cache | None = None,
    ) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights; queries, keys and values are of one tensor."""
        qkv = self.qkv_proj(hidden_states)
        query = slice_last(qkv, self.query_width)
        key = slice_last(qkv, self.key_width)
        value = slice_last(qkv, self.key_width)
        query, key, value = self.heads(query), self.heads(key), self.heads(value)
        query, key = rotate_partially(query, key, *rotary)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        output, weights = self.attend(query, key, value, mask)
        output = contiguous(reshape(output, *output.shape[:2], -1))
        output = self.o_proj(output)
        return output, weights


class MLP(Module):
    """Phi3MLP."""

    def __init__(self, config: DecoderConfig) -> None:
        self.inner = config.intermediate_size
        self.gate_up_proj = Linear(config.hidden_size, 2 * self.inner, bias=False)
        self.down_proj = Linear(self.inner, config.hidden_size, bias=False)
        self.activation_fn = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        up_states = self.gate_up_proj(hidden_states)
        gate, up_states = split(up_states, self.inner, dim=-1)
        up_states = mul(up_states, self.activation_fn(gate))
        y: Tensor = self.down_proj(up_states)
        return y


class Phi3Layer(DecoderLayer):
    """Phi3DecoderLayer."""

    def __init__(self, config: "Phi3Config") -> None:
        super().__init__(config, Phi3Attention(config), MLP(config))
        self.resid_attn_dropout = Dropout(config.resid_pdrop)
        self.resid_mlp_dropout = Dropout(config.resid_pdrop)

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, **attended(given))
        hidden_states = add(residual, self.resid_attn_dropout(hidden_states))
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return add(residual, self.resid_mlp_dropout(hidden_states))


class Phi3Config(SlidingConfig):
    """transformers' Phi3Config, with its defaults."""

    model_type: Literal["phi3"] = "phi3"
    pad_token_id: int | None = 32000
    vocab_size: Size = 32064
    hidden_size: Size = 3072
    intermediate_size: Size = 8192
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    max_position_embeddings: Size = 4096
    resid_pdrop: Probability = 0.0
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 1.0

    followed_in = ("4.57", "5.17", "5.23", "5.24")
    ignored_keys = SlidingConfig.ignored_keys | {
        *("embd_pdrop", "original_max_position_embeddings", "attention_bias")
    }

    @property
    def rotary_width(self) -> int:
        """How many of a head's elements carry positions."""
        return int(self.head_width * self.partial_rotary_factor_of(self.partial_rotary_factor))

    @property
    def rope_type(self) -> str:
        """A key of FREQUENCIES; older files say otherwise."""
        return {"su": "longrope", "yarn": "longrope"}.get(super().rope_type, super().rope_type)

    def layer(self) -> Phi3Layer:
        """Phi3DecoderLayer."""
        return Phi3Layer(self)
