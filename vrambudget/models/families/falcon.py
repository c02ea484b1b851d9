"""Falcon as transformers writes it (models/falcon/modeling_falcon.py): 7B, 40B, 180B, 11B, RW.

Weights are read transposed (`input @ weight.T`), which autocast does not cache, and biases are
added after the product. Three forms share the code:

    multi_query                one head of keys and values; attention and MLP side by side (7B)
    new_decoder_architecture   groups of heads, keys and values repeated; two norms (40B, 180B)
    neither                    attention, then MLP; with `alibi`, distances, no positions (RW)

A causal mask is always made, so sdpa takes no flash kernel; a single head of keys and values fits
no fused kernel at all.
"""

from collections.abc import Iterator
from typing import Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.model_config import divides
from vrambudget.config.settings import Probability, Size
from vrambudget.dtypes import int64
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.alibi import alibi_of, biased_mask, numeric_mask
from vrambudget.models.parts.body import DecoderBody
from vrambudget.models.parts.cache import Cache, dynamic_cache
from vrambudget.models.parts.causal_lm import LanguageModel
from vrambudget.models.parts.classification import SequenceClassifier
from vrambudget.models.parts.falcon_attention import Attention, FalconLinear
from vrambudget.models.parts.layers import CheckpointedLayer, Embedding, LayerNorm, Linear
from vrambudget.models.parts.masks import causal_mask, positions
from vrambudget.models.parts.rotary import Rotary, RotaryEmbedding
from vrambudget.models.parts.rotary_config import RotaryConfig
from vrambudget.ops.creation import made
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import ACTIVATIONS, Activation, add
from vrambudget.ops.fill import add_


class MLP(Module):
    """FalconMLP."""

    def __init__(self, config: "FalconConfig") -> None:
        width, inner = config.hidden_size, config.inner_width
        self.dense_h_to_4h = FalconLinear(width, inner, bias=config.bias)
        self.act = ACTIVATIONS[config.activation]
        self.dense_4h_to_h = FalconLinear(inner, width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x = self.act(self.dense_h_to_4h(x))
        y: Tensor = self.dense_4h_to_h(x)
        return y


class Layer(CheckpointedLayer):
    """FalconDecoderLayer."""

    def __init__(self, config: "FalconConfig") -> None:
        self.self_attention = Attention(config)
        self.mlp = MLP(config)
        self.attention_dropout = config.attention_dropout
        self.hidden_dropout = config.hidden_dropout
        self.is_parallel = config.parallel_attn
        self.has_two_norms = config.has_two_norms
        width = config.hidden_size
        if not self.is_parallel:
            self.post_attention_layernorm = LayerNorm(width)
            self.input_layernorm = LayerNorm(width)
        elif self.has_two_norms:
            self.ln_attn = LayerNorm(width)
            self.ln_mlp = LayerNorm(width)
        else:
            self.input_layernorm = LayerNorm(width)

    def forward(
        self,
        hidden_states: Tensor,
        *,
        mask: Tensor,
        alibi: Tensor | None,
        rotary: Rotary,
        position_ids: Tensor,
        past_key_values: Cache | None,
    ) -> tuple[Tensor, Tensor | None]:
        """[B, T, C] -> [B, T, C] and eager attention's weights; a checkpoint keeps positions."""
        del position_ids
        residual = hidden_states
        if self.has_two_norms:
            attention_layernorm_out = self.ln_attn(hidden_states)
            mlp_layernorm_out = self.ln_mlp(hidden_states)
        else:
            attention_layernorm_out = self.input_layernorm(hidden_states)
            mlp_layernorm_out = attention_layernorm_out
        attention_output, attn_weights = self.self_attention(
            attention_layernorm_out, mask, alibi, rotary, past_key_values
        )
        if not self.is_parallel:
            residual = self._dropout_add(attention_output, residual, self.attention_dropout)
            mlp_layernorm_out = self.post_attention_layernorm(residual)
        mlp_output = self.mlp(mlp_layernorm_out)
        if self.is_parallel:
            mlp_output = add_(mlp_output, attention_output)
        output = self._dropout_add(mlp_output, residual, self.hidden_dropout)
        return output, attn_weights

    def _dropout_add(self, x: Tensor, residual: Tensor, p: float) -> Tensor:
        return add(residual, dropout(x, p, training=self.training))


class Model(Module):
    """FalconModel."""

    def __init__(self, config: "FalconConfig") -> None:
        self.num_heads = config.num_attention_heads
        self.use_alibi = config.alibi
        self.word_embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.h = [Layer(config) for _ in range(config.num_hidden_layers)]
        for index, layer in enumerate(self.h):
            layer.self_attention.layer_idx = index
        self.ln_f = LayerNorm(config.hidden_size)
        self.rotary_emb = RotaryEmbedding(config.rotary_width, config.rope_type)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C]."""
        inputs_embeds = self.word_embeddings(input_ids)
        dtype, (B, T, _) = inputs_embeds.dtype, inputs_embeds.shape
        alibi = tokens = None
        if self.use_alibi:
            seen = 0 if past_key_values is None else past_key_values.seen
            tokens = attention_mask
            if tokens is None:
                tokens = made("ones", (B, seen + T), int64)
            alibi = alibi_of(tokens, self.num_heads, dtype)
        if position_ids is None:
            position_ids = positions(T)
        mask = causal_mask(inputs_embeds, None, attention_mask, past_key_values, skips=False)
        assert mask is not None  # noqa: S101 - it is never skipped
        if alibi is not None:
            mask = numeric_mask(mask, dtype)
            mask = biased_mask(mask, self.num_heads, dtype)
        hidden_states = inputs_embeds
        rotary = self.rotary_emb(position_ids, dtype)
        for layer in self.h:
            outputs = layer(
                hidden_states,
                mask=mask,
                alibi=alibi,
                rotary=rotary,
                position_ids=position_ids,
                past_key_values=past_key_values,
            )
            hidden_states = outputs[0]
        y: Tensor = self.ln_f(hidden_states)
        del tokens, outputs  # held until here
        return y


class FalconForCausalLM(LanguageModel):
    """Falcon with a language modelling head."""

    base_model_prefix = "transformer"
    config: "FalconConfig"

    def __init__(self, config: "FalconConfig") -> None:
        self.config = config
        self.transformer = Model(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:  # tie_weights: the head's own weight is freed
            self.lm_head.weight = self.transformer.word_embeddings.weight


class FalconConfig(RotaryConfig):
    """transformers' FalconConfig, with its defaults."""

    model_type: Literal["falcon"] = "falcon"
    vocab_size: Size = 65024
    hidden_size: Size = 4544
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 71
    num_ln_in_parallel_attn: Literal[1, 2] | None = None
    num_kv_heads: Size | None = None
    ffn_hidden_size: Size | None = None
    hidden_dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    activation: Activation = "gelu"
    alibi: bool = False
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    bias: bool = False
    max_position_embeddings: Size = 2048
    tie_word_embeddings: bool = True

    followed_in = ("5.17",)
    aliases = {"n_embed": "hidden_size"}  # noqa: RUF012 - declared ClassVar in the base class
    tasks = ("causal-lm", "seq-cls")
    loads_in_4bit = False
    ignored_keys = RotaryConfig.ignored_keys | {
        *("apply_residual_connection_post_layernorm", "rotary", "rotary_base"),
    }
    sees_packed_rows = False  # its mask is made without positions

    @property
    def head_width(self) -> int:
        """Elements of one head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def rotary_width(self) -> int:
        """How many of a head's elements carry positions."""
        return self.head_width

    @property
    def inner_width(self) -> int:
        """The width of the MLP."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def kv_heads(self) -> int:
        """Heads of key and value, as the projection has them."""
        if self.new_decoder_architecture or not self.multi_query:
            return self.num_kv_heads or self.num_attention_heads
        return 1

    @property
    def has_two_norms(self) -> bool:
        """Whether attention and MLP, side by side, have a norm each."""
        return self.new_decoder_architecture and self.num_ln_in_parallel_attn != 1

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        yield from divides(self, "num_attention_heads", into="hidden_size")
        if self.new_decoder_architecture:
            if not self.parallel_attn:
                yield "new_decoder_architecture has attention and MLP side by side (parallel_attn)"
            if self.num_attention_heads % self.kv_heads:
                yield from divides(self, "num_kv_heads", into="num_attention_heads")
        elif self.num_ln_in_parallel_attn == 2 and self.parallel_attn:  # noqa: PLR2004
            yield "num_ln_in_parallel_attn is 2; that takes new_decoder_architecture"
        elif self.kv_heads not in {1, self.num_attention_heads}:
            yield "num_kv_heads takes new_decoder_architecture"

    def new_cache(self) -> Cache:
        """Return an empty cache of keys and values."""
        return dynamic_cache([None] * self.num_hidden_layers)

    def body(self) -> DecoderBody:
        """Return the model without a head, its weights allocated."""
        return DecoderBody(self, Model(self))

    def build(self, task: Task) -> FalconForCausalLM | SequenceClassifier:
        """Return the model, its weights allocated."""
        if task == "seq-cls":
            return SequenceClassifier(self, Model(self), self.hidden_size, name="transformer")
        return FalconForCausalLM(self)
