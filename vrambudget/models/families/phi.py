"""Phi as transformers writes it (models/phi/modeling_phi.py): Phi-1, Phi-1.5, Phi-2.

LayerNorm; attention and MLP side by side on the same input; biases everywhere, the head included;
rotary positions over `partial_rotary_factor` of a head.
"""

from typing import Annotated, Any, Literal

from vrambudget.config.settings import Field, Probability, Size
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.decoder import DecoderConfig, Model
from vrambudget.models.parts.decoder_layers import Attention, attended
from vrambudget.models.parts.layers import CheckpointedLayer, Dropout, LayerNorm, Linear
from vrambudget.models.parts.rotary import Rotary, RotaryEmbedding, rotated
from vrambudget.ops.elementwise import ACTIVATIONS, Activation, add
from vrambudget.ops.shape import cat, contiguous, reshape, slice_last, unsqueeze


class PhiAttention(Attention):
    """PhiAttention."""

    def __init__(self, config: "PhiConfig") -> None:
        self.head_dim = config.head_width
        self.attention_dropout = config.attention_dropout
        self.rotary_ndims = config.rotary_width
        width, heads = config.hidden_size, config.num_attention_heads
        self.q_proj = Linear(width, heads * self.head_dim)
        self.k_proj = Linear(width, config.kv_heads * self.head_dim)
        self.v_proj = Linear(width, config.kv_heads * self.head_dim)
        self.dense = Linear(heads * self.head_dim, width)
        self.q_layernorm = self.k_layernorm = None
        if config.qk_layernorm:
            self.q_layernorm = LayerNorm(config.hidden_size // heads)
            self.k_layernorm = LayerNorm(config.hidden_size // heads)

    def forward(
        self,
        hidden_states: Tensor,
        rotary: Rotary,
        mask: Tensor | None,
        past_key_values: Cache | None = None,
    ) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        query_states, key_states, value_states = self.project(hidden_states)
        if self.q_layernorm is not None and self.k_layernorm is not None:
            query_states = self.q_layernorm(query_states)
            key_states = self.k_layernorm(key_states)
        cos, sin = (unsqueeze(table, 1) for table in rotary)
        rest = self.head_dim - self.rotary_ndims
        query_rot = slice_last(query_states, self.rotary_ndims)
        query_pass = slice_last(query_states, rest)
        key_rot, key_pass = slice_last(key_states, self.rotary_ndims), slice_last(key_states, rest)
        # both are rotated before one is joined, and their parts live until this returns
        query_rot, key_rot = rotated(query_rot, cos, sin), rotated(key_rot, cos, sin)
        query_states = cat((query_rot, query_pass), dim=-1)
        key_states = cat((key_rot, key_pass), dim=-1)
        if past_key_values is not None:
            key_states, value_states = past_key_values.update(
                key_states, value_states, self.layer_idx
            )
        attn_output, weights = self.attend(query_states, key_states, value_states, mask)
        attn_output = contiguous(reshape(attn_output, *attn_output.shape[:2], -1))
        attn_output = self.dense(attn_output)
        return attn_output, weights


class PhiMLP(Module):
    """PhiMLP."""

    def __init__(self, config: "PhiConfig") -> None:
        self.activation_fn = ACTIVATIONS[config.hidden_act]
        self.fc1 = Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        hidden_states = self.fc1(hidden_states)
        hidden_states = self.activation_fn(hidden_states)
        y: Tensor = self.fc2(hidden_states)
        return y


class PhiLayer(CheckpointedLayer):
    """PhiDecoderLayer."""

    def __init__(self, config: "PhiConfig") -> None:
        self.self_attn = PhiAttention(config)
        self.mlp = PhiMLP(config)
        self.input_layernorm = LayerNorm(config.hidden_size)
        self.resid_dropout = Dropout(config.resid_pdrop)

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        attn_outputs, _ = self.self_attn(hidden_states=hidden_states, **attended(given))
        attn_outputs = self.resid_dropout(attn_outputs)
        feed_forward_hidden_states = self.resid_dropout(self.mlp(hidden_states))
        return add(add(attn_outputs, feed_forward_hidden_states), residual)


class PhiModel(Model):
    """PhiModel."""

    config: "PhiConfig"
    final_norm = "final_layernorm"

    def finish(self) -> None:
        """Make what comes after the layers."""
        self.rotary_emb = RotaryEmbedding(
            self.config.rotary_width, self.config.rope_type, last=False
        )
        self.embed_dropout = Dropout(self.config.embd_pdrop)
        self.final_layernorm = LayerNorm(self.config.hidden_size)
        self.rotary_emb.initialise()

    def entered(self, inputs_embeds: Tensor) -> Tensor:
        """Drop embeddings out [B, T, C]."""
        dropped: Tensor = self.embed_dropout(inputs_embeds)
        return dropped


class PhiConfig(DecoderConfig):
    """transformers' PhiConfig, with its defaults."""

    model_type: Literal["phi"] = "phi"
    vocab_size: Size = 51200
    hidden_size: Size = 2048
    intermediate_size: Size = 8192
    num_hidden_layers: Size = 24
    num_attention_heads: Size = 32
    hidden_act: Activation = "gelu_new"
    max_position_embeddings: Size = 2048
    resid_pdrop: Probability = 0.0
    embd_pdrop: Probability = 0.0
    qk_layernorm: bool = False
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 0.5

    followed_in = ("5.17",)
    head_bias = True

    @property
    def rotary_width(self) -> int:
        """How many of a head's elements carry positions."""
        return int(self.head_width * self.partial_rotary_factor_of(self.partial_rotary_factor))

    def layer(self) -> PhiLayer:
        """PhiDecoderLayer."""
        return PhiLayer(self)

    def decoder(self) -> PhiModel:
        """PhiModel."""
        return PhiModel(self)
