"""OPT as transformers writes it (models/opt/modeling_opt.py).

Learned positions that begin at row 2, counted by a running sum over an attention mask of ones; that
mask goes into the causal one. LayerNorm before each part (after it in OPT-350m), projections into
and out of the width of the embeddings where it differs, q scaled before attention.

Not modelled: LayerDrop (`layerdrop`), which skips layers at random.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.model_config import ModelConfig, divides
from vrambudget.config.settings import Probability, Size
from vrambudget.dtypes import float32, int64
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.attention import Attended, attend
from vrambudget.models.parts.body import DecoderBody
from vrambudget.models.parts.cache import Cache, dynamic_cache
from vrambudget.models.parts.causal_lm import LanguageModel
from vrambudget.models.parts.classification import SequenceClassifier
from vrambudget.models.parts.layers import CheckpointedLayer, Embedding, LayerNorm, Linear
from vrambudget.models.parts.masks import causal_mask
from vrambudget.models.parts.masks_v4 import additive_causal_mask, tokens_of
from vrambudget.ops.creation import arange, made
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import ACTIVATIONS, Activation, add, mul_scalar
from vrambudget.ops.scan import cumsum
from vrambudget.ops.shape import contiguous, narrowed, reshape, transpose, view

_FIRST_POSITION = 2


class PositionalEmbedding(Embedding):
    """OPTLearnedPositionalEmbedding: two rows more than there are positions."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__(rows + _FIRST_POSITION, width)

    def forward(self, position_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, C]."""
        return super().forward(made("add", position_ids.shape, int64))


class Attention(Module):
    """OPTAttention."""

    layer_idx = 0

    def __init__(self, config: "OPTConfig") -> None:
        width, bias = config.hidden_size, config.enable_bias
        self.heads = config.num_attention_heads
        self.dropout = config.attention_dropout
        self.k_proj = Linear(width, width, bias=bias)
        self.v_proj = Linear(width, width, bias=bias)
        self.q_proj = Linear(width, width, bias=bias)
        self.out_proj = Linear(width, width, bias=bias)

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None, past_key_values: Cache | None
    ) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        query = mul_scalar(self.q_proj(hidden_states))
        query = self._heads(query)
        key = self.k_proj(hidden_states)
        value = self.v_proj(hidden_states)
        key = self._heads(key)
        value = self._heads(value)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        dropout_p = self.dropout if self.training else 0.0
        output, weights = attend(query, key, value, mask, dropout_p=dropout_p)
        output = contiguous(reshape(output, *output.shape[:2], -1))
        output = self.out_proj(output)
        return output, weights

    def _heads(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, H, T, D]."""
        B, _, C = x.shape
        return transpose(view(x, B, -1, self.heads, C // self.heads), 1, 2)


class DecoderLayer(CheckpointedLayer):
    """OPTDecoderLayer."""

    def __init__(self, config: "OPTConfig") -> None:
        width, bias = config.hidden_size, config.enable_bias
        affine = config.layer_norm_elementwise_affine
        self.self_attn = Attention(config)
        self.norms_first = config.do_layer_norm_before
        self.p = config.dropout
        self.activation_fn = ACTIVATIONS[config.activation_function]
        self.self_attn_layer_norm = LayerNorm(width, affine=affine)
        self.fc1 = Linear(width, config.ffn_dim, bias=bias)
        self.fc2 = Linear(config.ffn_dim, width, bias=bias)
        self.final_layer_norm = LayerNorm(width, affine=affine)

    def forward(
        self,
        hidden_states: Tensor,
        *,
        mask: Tensor | None,
        positions: Sequence[Tensor],
        past_key_values: Cache | None,
    ) -> Tensor:
        """[B, T, C] -> [B, T, C]; the positions are not read, but a checkpoint keeps them."""
        del positions
        residual = hidden_states
        if self.norms_first:
            hidden_states = self.self_attn_layer_norm(hidden_states)
        hidden_states, _ = self.self_attn(
            hidden_states=hidden_states, mask=mask, past_key_values=past_key_values
        )
        hidden_states = self._dropout(hidden_states)
        hidden_states = add(residual, hidden_states)
        if not self.norms_first:
            hidden_states = self.self_attn_layer_norm(hidden_states)

        shape = hidden_states.shape
        hidden_states = reshape(hidden_states, -1, shape[-1])
        residual = hidden_states
        if self.norms_first:
            hidden_states = self.final_layer_norm(hidden_states)
        hidden_states = self.fc1(hidden_states)
        hidden_states = self.activation_fn(hidden_states)
        hidden_states = self.fc2(hidden_states)
        hidden_states = self._dropout(hidden_states)
        hidden_states = view(add(residual, hidden_states), *shape)
        if not self.norms_first:
            hidden_states = self.final_layer_norm(hidden_states)
        return hidden_states

    def _dropout(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, training=self.training)


class Decoder(Module):
    """OPTDecoder."""

    def __init__(self, config: "OPTConfig") -> None:
        width, embedded = config.hidden_size, config.embedding_width
        self.embed_tokens = Embedding(config.vocab_size, embedded)
        self.embed_positions = PositionalEmbedding(config.max_position_embeddings, width)
        projects = embedded != width
        self.project_out = Linear(width, embedded, bias=False) if projects else None
        self.project_in = Linear(embedded, width, bias=False) if projects else None
        self.final_layer_norm = (
            LayerNorm(width, affine=config.layer_norm_elementwise_affine)
            if config.do_layer_norm_before and not config.remove_final_layer_norm
            else None
        )
        self.layers = [DecoderLayer(config) for _ in range(config.num_hidden_layers)]
        for index, layer in enumerate(self.layers):
            layer.self_attn.layer_idx = index

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C of the embeddings]."""
        inputs_embeds = self.embed_tokens(input_ids)
        positions: list[Tensor] = []
        if not transformers_since(5, 2):
            positions.append(arange(input_ids.shape[1]))
            attention_mask = tokens_of(inputs_embeds, attention_mask)
            mask = additive_causal_mask(inputs_embeds, attention_mask)
            position_ids = _positions(attention_mask) if position_ids is None else position_ids
        else:
            if attention_mask is None:
                seen = 0 if past_key_values is None else past_key_values.seen
                shape = input_ids.shape[0], seen + input_ids.shape[1]
                attention_mask = made("ones", shape, float32)
            if position_ids is None:
                position_ids = narrowed(_positions(attention_mask), 1, input_ids.shape[1])
            mask = causal_mask(inputs_embeds, None, attention_mask, past_key_values)
        positions.append(position_ids)
        pos_embeds = self.embed_positions(position_ids)
        if self.project_in is not None:
            inputs_embeds = self.project_in(inputs_embeds)
        hidden_states = add(inputs_embeds, pos_embeds)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, mask=mask, positions=positions, past_key_values=past_key_values
            )
        if self.final_layer_norm is not None:
            hidden_states = self.final_layer_norm(hidden_states)
        if self.project_out is not None:
            hidden_states = self.project_out(hidden_states)
        return hidden_states


def _positions(attention_mask: Tensor) -> Tensor:
    """(cumsum(mask) * mask - 1).long(): [B, T]."""
    shape, dtype = attention_mask.shape, attention_mask.dtype
    counts = cumsum(attention_mask, dtype)
    products = made("mul", shape, dtype)
    differences = made("sub", shape, dtype)
    del products
    positions = differences if dtype is int64 else made("to_dtype", shape, int64)
    del differences, counts
    return positions


class OPTModel(Module):
    """A decoder, under its name."""

    def __init__(self, config: "OPTConfig") -> None:
        self.decoder = Decoder(config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C of the embeddings]."""
        given = position_ids, past_key_values
        hidden_states: Tensor = self.decoder(input_ids, attention_mask, *given)
        return hidden_states


class OPTForCausalLM(LanguageModel):
    """OPT with a language modelling head."""

    config: "OPTConfig"

    def __init__(self, config: "OPTConfig") -> None:
        self.config = config
        self.model = OPTModel(config)
        self.lm_head = Linear(config.embedding_width, config.vocab_size, bias=False)
        if config.tie_word_embeddings:  # tie_weights: the head's own weight is freed
            self.lm_head.weight = self.model.decoder.embed_tokens.weight

    def kept(self, hidden_states: Tensor, logits_to_keep: int) -> Tensor:
        """Return the tokens [B, K, C] that get logits: all of them before transformers 5.0."""
        if not transformers_since(5, 0):
            return hidden_states
        return super().kept(hidden_states, logits_to_keep)


class OPTConfig(ModelConfig):
    """transformers' OPTConfig, with its defaults."""

    model_type: Literal["opt"] = "opt"
    pad_token_id: int | None = 1
    vocab_size: Size = 50272
    hidden_size: Size = 768
    num_hidden_layers: Size = 12
    num_attention_heads: Size = 12
    ffn_dim: Size = 3072
    word_embed_proj_dim: Size | None = None
    max_position_embeddings: Size = 2048
    activation_function: Activation = "relu"
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    do_layer_norm_before: bool = True
    remove_final_layer_norm: bool = False
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    tie_word_embeddings: bool = True

    followed_in = ("4.57", "5.17", "5.23", "5.24")
    aliases = {  # noqa: RUF012 - declared ClassVar in the base class
        "_remove_final_layer_norm": "remove_final_layer_norm"
    }
    tasks = ("causal-lm", "seq-cls")
    ignored_keys = frozenset({"activation_dropout", "layerdrop"})
    sees_packed_rows = False  # its own mask of ones stands before positions

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings and of the head."""
        return self.word_embed_proj_dim or self.hidden_size

    @property
    def learned_positions(self) -> int:
        """Positions that have a row."""
        return self.max_position_embeddings

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from divides(self, "num_attention_heads", into="hidden_size")

    def new_cache(self) -> Cache:
        """Return an empty cache of keys and values."""
        return dynamic_cache([None] * self.num_hidden_layers)

    def body(self) -> DecoderBody:
        """Return the model without a head, its weights allocated."""
        return DecoderBody(self, OPTModel(self))

    def build(self, task: Task) -> OPTForCausalLM | SequenceClassifier:
        """Return the model, its weights allocated."""
        if task == "seq-cls":
            return SequenceClassifier(self, OPTModel(self), self.embedding_width)
        return OPTForCausalLM(self)
