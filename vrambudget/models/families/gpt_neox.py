"""GPT-NeoX as transformers writes it (models/gpt_neox/modeling_gpt_neox.py): Pythia, GPT-NeoX-20B.

LayerNorm, one projection for q, k and v whose heads lie one after another, rotary positions over
`rotary_pct` of a head, attention and MLP side by side on the same input.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.model_config import divides
from vrambudget.config.settings import Field, Probability, Size
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended, attend
from vrambudget.models.parts.body import DecoderBody
from vrambudget.models.parts.cache import Cache, dynamic_cache
from vrambudget.models.parts.causal_lm import LanguageModel
from vrambudget.models.parts.classification import SequenceClassifier
from vrambudget.models.parts.decoder_layers import attended
from vrambudget.models.parts.layers import CheckpointedLayer, Dropout, Embedding, LayerNorm, Linear
from vrambudget.models.parts.masks import causal_mask, positions
from vrambudget.models.parts.rotary import Rotary, RotaryEmbedding, rotate_partially
from vrambudget.models.parts.rotary_config import RotaryConfig
from vrambudget.ops.elementwise import ACTIVATIONS, Activation, add
from vrambudget.ops.shape import contiguous, reshape, split, transpose, view


class Attention(Module):
    """GPTNeoXAttention."""

    layer_idx = 0

    def __init__(self, config: "GPTNeoXConfig") -> None:
        width, bias = config.hidden_size, config.attention_bias
        self.head_dim = config.head_width
        self.attention_dropout = config.attention_dropout
        self.query_key_value = Linear(width, 3 * width, bias=bias)
        self.dense = Linear(width, width, bias=bias)

    def forward(
        self,
        hidden_states: Tensor,
        *,
        rotary: Rotary,
        mask: Tensor | None,
        past_key_values: Cache | None,
    ) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        # [B, T, 3C] -> [B, H, T, 3D]
        qkv = view(
            self.query_key_value(hidden_states), *hidden_states.shape[:2], -1, 3 * self.head_dim
        )
        qkv = transpose(qkv, 1, 2)
        query, key, value = split(qkv, self.head_dim, dim=-1)
        cos, sin = rotary
        query, key = rotate_partially(query, key, cos, sin, join_last=True)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        dropout_p = self.attention_dropout if self.training else 0.0
        output, weights = attend(query, key, value, mask, dropout_p=dropout_p)
        output = contiguous(reshape(output, *output.shape[:2], -1))
        output = self.dense(output)
        return output, weights


class MLP(Module):
    """GPTNeoXMLP."""

    def __init__(self, config: "GPTNeoXConfig") -> None:
        self.dense_h_to_4h = Linear(config.hidden_size, config.intermediate_size)
        self.dense_4h_to_h = Linear(config.intermediate_size, config.hidden_size)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        hidden_states = self.dense_h_to_4h(hidden_states)
        hidden_states = self.act(hidden_states)
        y: Tensor = self.dense_4h_to_h(hidden_states)
        return y


class Layer(CheckpointedLayer):
    """GPTNeoXLayer."""

    def __init__(self, config: "GPTNeoXConfig") -> None:
        self.use_parallel_residual = config.use_parallel_residual
        self.input_layernorm = LayerNorm(config.hidden_size)
        self.post_attention_layernorm = LayerNorm(config.hidden_size)
        self.post_attention_dropout = Dropout(config.hidden_dropout)
        self.post_mlp_dropout = Dropout(config.hidden_dropout)
        self.attention = Attention(config)
        self.mlp = MLP(config)

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        attn_output, _ = self.attention(self.input_layernorm(hidden_states), **attended(given))
        attn_output = self.post_attention_dropout(attn_output)
        if self.use_parallel_residual:
            mlp_output = self.mlp(self.post_attention_layernorm(hidden_states))
            mlp_output = self.post_mlp_dropout(mlp_output)
            hidden_states = add(add(mlp_output, attn_output), hidden_states)
        else:
            attn_output = add(attn_output, hidden_states)
            mlp_output = self.mlp(self.post_attention_layernorm(attn_output))
            mlp_output = self.post_mlp_dropout(mlp_output)
            hidden_states = add(mlp_output, attn_output)
        return hidden_states


class Model(Module):
    """GPTNeoXModel."""

    def __init__(self, config: "GPTNeoXConfig") -> None:
        self.embed_in = Embedding(config.vocab_size, config.hidden_size)
        self.emb_dropout = Dropout(config.hidden_dropout)
        self.layers = [Layer(config) for _ in range(config.num_hidden_layers)]
        for index, layer in enumerate(self.layers):
            layer.attention.layer_idx = index
        self.final_layer_norm = LayerNorm(config.hidden_size)
        self.rotary_emb = RotaryEmbedding(config.rotary_width, config.rope_type)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C]."""
        inputs_embeds = self.embed_in(input_ids)
        if position_ids is None:
            position_ids = positions(input_ids.shape[1])
        mask = causal_mask(inputs_embeds, position_ids, attention_mask, past_key_values)
        hidden_states = self.emb_dropout(inputs_embeds)
        rotary = self.rotary_emb(position_ids, hidden_states.dtype)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                rotary=rotary,
                mask=mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
            )
        y: Tensor = self.final_layer_norm(hidden_states)
        return y


class GPTNeoXForCausalLM(LanguageModel):
    """GPT-NeoX with a language modelling head."""

    base_model_prefix = "gpt_neox"
    config: "GPTNeoXConfig"

    def __init__(self, config: "GPTNeoXConfig") -> None:
        self.config = config
        self.gpt_neox = Model(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:  # tie_weights: the head's own weight is freed
            self.lm_head.weight = self.gpt_neox.embed_in.weight


class GPTNeoXConfig(RotaryConfig):
    """transformers' GPTNeoXConfig, with its defaults."""

    model_type: Literal["gpt_neox"] = "gpt_neox"
    vocab_size: Size = 50432
    hidden_size: Size = 6144
    intermediate_size: Size = 24576
    num_hidden_layers: Size = 44
    num_attention_heads: Size = 64
    hidden_act: Activation = "gelu"
    max_position_embeddings: Size = 2048
    attention_dropout: Probability = 0.0
    hidden_dropout: Probability = 0.0
    attention_bias: bool = True
    use_parallel_residual: bool = True
    rotary_pct: Annotated[float, Field(gt=0, le=1)] = 0.25
    tie_word_embeddings: bool = False

    followed_in = ("4.57", "5.17", "5.23", "5.24")
    tasks = ("causal-lm", "seq-cls")
    ignored_keys = RotaryConfig.ignored_keys | {"rotary_emb_base", "classifier_dropout"}

    @property
    def head_width(self) -> int:
        """Elements of one head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def rotary_width(self) -> int:
        """How many of a head's elements carry positions."""
        return int(self.head_width * self.partial_rotary_factor_of(self.rotary_pct))

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        yield from divides(self, "num_attention_heads", into="hidden_size")

    def new_cache(self) -> Cache:
        """Return an empty cache of keys and values."""
        return dynamic_cache([None] * self.num_hidden_layers)

    def body(self) -> DecoderBody:
        """Return the model without a head, its weights allocated."""
        return DecoderBody(self, Model(self))

    def build(self, task: Task) -> GPTNeoXForCausalLM | SequenceClassifier:
        """Return the model, its weights allocated."""
        if task == "seq-cls":
            return SequenceClassifier(self, Model(self), self.hidden_size, name="gpt_neox")
        return GPTNeoXForCausalLM(self)
