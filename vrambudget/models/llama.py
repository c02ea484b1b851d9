"""Llama as transformers writes it (models/llama/modeling_llama.py).

RMSNorm composed of single operations in float32, rotary embeddings, separate projections for q, k, v
with fewer key-value heads, a gated MLP. Llama 1 to 3, TinyLlama, SmolLM2.

Not modelled: RoPE scaling beyond its tables (it changes values, not sizes), tensor parallelism.
"""

from collections.abc import Iterator
from typing import Literal

from vrambudget.config.job import Task
from vrambudget.config.model_config import ModelConfig, divides
from vrambudget.config.settings import Probability, Size
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context, made_for
from vrambudget.engine.dtypes import float32
from vrambudget.engine.module import Module
from vrambudget.engine.tape import Purpose
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.attention import attend
from vrambudget.models.layers import CheckpointedLayer, Embedding, Linear
from vrambudget.models.losses import causal_lm_loss
from vrambudget.models.masks import causal_mask, positions
from vrambudget.models.outputs import Outputs
from vrambudget.models.rotary import RotaryEmbedding, rotate
from vrambudget.ops.elementwise import (
    ACTIVATIONS,
    Activation,
    add,
    add_scalar,
    mul,
    pow_scalar,
    rsqrt,
)
from vrambudget.ops.reduce import mean_last
from vrambudget.ops.shape import contiguous, reshape, transpose, view

Rotary = tuple[Tensor, Tensor]


class RMSNorm(Module):
    """LlamaRMSNorm: weight [C]; all but the last product in float32."""

    def __init__(self, width: int) -> None:
        self.weight = Parameter((width,), context.options.dtype)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        input_dtype = hidden_states.dtype
        hidden_states = to(hidden_states, float32)
        variance = mean_last(pow_scalar(hidden_states))
        hidden_states = mul(hidden_states, rsqrt(add_scalar(variance)))
        return mul(self.weight, to(hidden_states, input_dtype))


class Attention(Module):
    """LlamaAttention."""

    def __init__(self, config: "LlamaConfig") -> None:
        self.head_dim = config.head_width
        self.attention_dropout = config.attention_dropout
        width, bias = config.hidden_size, config.attention_bias
        heads, kv_heads = config.num_attention_heads, config.kv_heads
        self.q_proj = Linear(width, heads * self.head_dim, bias=bias)
        self.k_proj = Linear(width, kv_heads * self.head_dim, bias=bias)
        self.v_proj = Linear(width, kv_heads * self.head_dim, bias=bias)
        self.o_proj = Linear(heads * self.head_dim, width, bias=bias)

    def forward(self, hidden_states: Tensor, rotary: Rotary, mask: Tensor | None) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        B, T = hidden_states.shape[:2]
        query = self._heads(self.q_proj(hidden_states))
        key = self._heads(self.k_proj(hidden_states))
        value = self._heads(self.v_proj(hidden_states))
        cos, sin = rotary
        query, key = rotate(query, key, cos, sin)
        dropout_p = self.attention_dropout if context.options.training else 0.0
        output = attend(query, key, value, mask, dropout_p=dropout_p)
        output = contiguous(reshape(output, B, T, -1))
        return self.o_proj(output)

    def _heads(self, x: Tensor) -> Tensor:
        """[B, T, H * D] -> [B, H, T, D]."""
        return transpose(view(x, *x.shape[:2], -1, self.head_dim), 1, 2)


class MLP(Module):
    """LlamaMLP: down(act(gate(x)) * up(x))."""

    def __init__(self, config: "LlamaConfig") -> None:
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(width, inner, bias=bias)
        self.up_proj = Linear(width, inner, bias=bias)
        self.down_proj = Linear(inner, width, bias=bias)
        self.act_fn = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        return self.down_proj(mul(self.act_fn(self.gate_proj(x)), self.up_proj(x)))


class DecoderLayer(CheckpointedLayer):
    """LlamaDecoderLayer."""

    def __init__(self, config: "LlamaConfig") -> None:
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size)

    def forward(self, hidden_states: Tensor, *, rotary: Rotary, mask: Tensor | None) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.self_attn(hidden_states=hidden_states, rotary=rotary, mask=mask)
        hidden_states = add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return add(residual, hidden_states)


class Model(Module):
    """LlamaModel."""

    def __init__(self, config: "LlamaConfig") -> None:
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = [DecoderLayer(config) for _ in range(config.num_hidden_layers)]
        self.norm = RMSNorm(config.hidden_size)
        self.rotary_emb = RotaryEmbedding(config.head_width)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, C]."""
        inputs_embeds = self.embed_tokens(input_ids)
        position_ids = positions(input_ids.shape[1])
        mask = causal_mask(inputs_embeds, position_ids)
        hidden_states = inputs_embeds
        rotary = self.rotary_emb(input_ids.shape[1], inputs_embeds.dtype)
        for layer in self.layers:
            hidden_states = layer(hidden_states, rotary=rotary, mask=mask)
        return self.norm(hidden_states)


class LlamaForCausalLM(Module):
    """Llama with a language modelling head."""

    def __init__(self, config: "LlamaConfig") -> None:
        self.config = config
        self.model = Model(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:  # tie_weights: the head's own weight is freed
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> Outputs:
        """[B, T], [B, T] -> loss and logits [B, T, V]."""
        hidden_states = self.model(input_ids)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.lm_head(hidden_states)
        loss = causal_lm_loss(logits, labels, self.config.vocab_size)
        return Outputs(loss, logits)


class LlamaConfig(ModelConfig):
    """transformers' LlamaConfig, with its defaults."""

    model_type: Literal["llama"] = "llama"
    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    hidden_act: Activation = "silu"
    max_position_embeddings: Size = 2048
    attention_bias: bool = False
    attention_dropout: Probability = 0.0
    mlp_bias: bool = False
    tie_word_embeddings: bool = False

    ignored_keys = frozenset({"rope_theta", "rope_scaling", "rope_parameters"})

    @property
    def kv_heads(self) -> int:
        """Heads of key and value."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_width(self) -> int:
        """Elements of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        if self.head_dim is None:
            yield from divides(self, "num_attention_heads", into="hidden_size")
        if self.num_attention_heads % self.kv_heads:
            yield from divides(self, "num_key_value_heads", into="num_attention_heads")

    def build(self, task: Task) -> LlamaForCausalLM:
        """Return the model, its weights allocated."""
        del task  # there is one
        return LlamaForCausalLM(self)
