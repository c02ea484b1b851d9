"""GPT-2 as transformers writes it (models/gpt2/modeling_gpt2.py).

Learned positions, LayerNorm before each part, one fused projection for q, k, v, `gelu_new` composed
of single operations, dropout after both parts, a head that shares the embedding's weight.

Not modelled: cross-attention, `scale_attn_by_inverse_layer_idx` (changes no tensor),
`reorder_and_upcast_attn` with eager attention.
"""

from collections.abc import Iterator
from functools import partial
from typing import Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.model_config import ModelConfig, divides
from vrambudget.config.settings import Probability, Size
from vrambudget.dtypes import bool_
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.attention import Attended, attend
from vrambudget.models.parts.body import DecoderBody
from vrambudget.models.parts.cache import Cache, dynamic_cache
from vrambudget.models.parts.causal_lm import LanguageModel
from vrambudget.models.parts.classification import SequenceClassifier
from vrambudget.models.parts.layers import (
    CheckpointedLayer,
    Conv1D,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
)
from vrambudget.models.parts.masks import causal_mask, look_for_padding, positions
from vrambudget.ops.creation import made
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import (
    ACTIVATIONS,
    Activation,
    add,
    div_by_constant,
    mul_scalar,
    where_scalar,
)
from vrambudget.ops.linear import matmul
from vrambudget.ops.shape import contiguous, reshape, split, transpose, view
from vrambudget.ops.softmax import softmax
from vrambudget.tape.events import Purpose


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout_p: float,
    causal: Tensor | None = None,
) -> Attended:
    """GPT-2's own: the softmax in the scores' dtype, the result not made contiguous.

    Transformers 4.57 applies the layer's own mask [1, 1, P, P] too; its numbers are tensors.
    """
    weights = matmul(query, transpose(key, -1, -2))
    if causal is None:
        weights = mul_scalar(weights)
    else:
        weights = div_by_constant(weights, made("full", (), weights.dtype))
        lowest = made("full", (), weights.dtype)
        lengths = query.shape[-2], key.shape[-2]
        causal = causal.viewed((1, 1, *lengths), causal.actual_strides())
        weights = where_scalar(causal, weights, lowest)
    if mask is not None:
        weights = add(weights, mask)
    weights = softmax(weights)
    weights = to(weights, value.dtype)
    weights = dropout(weights, dropout_p)
    output = matmul(weights, value)
    return transpose(output, 1, 2), weights


class Attention(Module):
    """GPT2Attention."""

    layer_idx = 0

    def __init__(self, config: "GPT2Config") -> None:
        self.causal = _causal_buffers(config.max_position_embeddings)
        self.width = config.hidden_size
        self.head_dim = self.width // config.num_attention_heads
        self.c_attn = Conv1D(3 * self.width, self.width)
        self.c_proj = Conv1D(self.width, self.width)
        self.attn_pdrop = config.attn_pdrop
        self.resid_dropout = Dropout(config.resid_pdrop)

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None, past_key_values: Cache | None
    ) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        query, key, value = split(self.c_attn(hidden_states), self.width, dim=2)
        key = self._heads(key)
        value = self._heads(value)
        query = self._heads(query)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        dropout_p = self.attn_pdrop if self.training else 0.0
        eager = partial(eager_attention, causal=self.causal and self.causal[0])
        output, weights = attend(query, key, value, mask, dropout_p=dropout_p, eager=eager)
        output = contiguous(reshape(output, *output.shape[:-2], self.width))
        output = self.c_proj(output)
        return self.resid_dropout(output), weights

    def _heads(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, H, T, D]."""
        return transpose(view(x, *x.shape[:-1], -1, self.head_dim), 1, 2)


def _causal_buffers(length: int) -> tuple[Tensor, Tensor] | None:
    """Return each layer's causal mask [1, 1, P, P] and its lowest score, before 5.2."""
    if transformers_since(5, 2):
        return None
    ones = made("ones", (length, length), bool_)
    with made_for(Purpose.WEIGHTS):
        triangle = made("tril", (1, 1, length, length), bool_)
        del ones
        return triangle, made("tensor", (), context.options.dtype)


class MLP(Module):
    """GPT2MLP."""

    def __init__(self, config: "GPT2Config") -> None:
        inner = config.n_inner or 4 * config.hidden_size
        self.c_fc = Conv1D(inner, config.hidden_size)
        self.c_proj = Conv1D(config.hidden_size, inner)
        self.act = ACTIVATIONS[config.activation_function]
        self.dropout = Dropout(config.resid_pdrop)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        hidden_states = self.c_fc(hidden_states)
        hidden_states = self.act(hidden_states)
        hidden_states = self.c_proj(hidden_states)
        y: Tensor = self.dropout(hidden_states)
        return y


class Block(CheckpointedLayer):
    """GPT2Block."""

    def __init__(self, config: "GPT2Config") -> None:
        self.ln_1 = LayerNorm(config.hidden_size)
        self.attn = Attention(config)
        self.ln_2 = LayerNorm(config.hidden_size)
        self.mlp = MLP(config)

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: Cache | None,
        mask: Tensor | None,
        *,
        position_ids: Tensor,
    ) -> Tensor:
        """[B, T, C] -> [B, T, C]; the positions are not read, but a checkpoint keeps them."""
        del position_ids
        residual = hidden_states
        hidden_states = self.ln_1(hidden_states)
        attn_output, _ = self.attn(hidden_states, mask, past_key_values)
        hidden_states = add(attn_output, residual)
        residual = hidden_states
        hidden_states = self.ln_2(hidden_states)
        feed_forward = self.mlp(hidden_states)
        return add(residual, feed_forward)


class Transformer(Module):
    """GPT2Model."""

    def __init__(self, config: "GPT2Config") -> None:
        self.looks_for_padding = config.pad_token_id is not None
        self.wte = Embedding(config.vocab_size, config.hidden_size)
        self.wpe = Embedding(config.max_position_embeddings, config.hidden_size)
        self.drop = Dropout(config.embd_pdrop)
        self.h = [Block(config) for _ in range(config.num_hidden_layers)]
        for index, block in enumerate(self.h):
            block.attn.layer_idx = index
        self.ln_f = LayerNorm(config.hidden_size)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C]."""
        if attention_mask is None and self.looks_for_padding:
            look_for_padding(input_ids.shape[0])
        inputs_embeds = self.wte(input_ids)
        if position_ids is None:
            position_ids = positions(input_ids.shape[1])
        position_embeds = self.wpe(position_ids)
        hidden_states = add(inputs_embeds, position_embeds)
        mask = causal_mask(inputs_embeds, position_ids, attention_mask, past_key_values)
        hidden_states = self.drop(hidden_states)
        for block in self.h:
            hidden_states = block(hidden_states, past_key_values, mask, position_ids=position_ids)
        y: Tensor = self.ln_f(hidden_states)
        return y


class GPT2LMHeadModel(LanguageModel):
    """GPT-2 with a language modelling head."""

    base_model_prefix = "transformer"
    config: "GPT2Config"
    is_named_for_causal_lm = False  # transformers chooses the loss by the class's name

    def __init__(self, config: "GPT2Config") -> None:
        self.config = config
        self.transformer = Transformer(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:  # tie_weights: the head's own weight is freed
            self.lm_head.weight = self.transformer.wte.weight


class GPT2Config(ModelConfig):
    """transformers' GPT2Config, with its defaults."""

    model_type: Literal["gpt2"] = "gpt2"
    vocab_size: Size = 50257
    hidden_size: Size = 768
    num_hidden_layers: Size = 12
    num_attention_heads: Size = 12
    max_position_embeddings: Size = 1024
    n_inner: Size | None = None
    activation_function: Activation = "gelu_new"
    resid_pdrop: Probability = 0.1
    embd_pdrop: Probability = 0.1
    attn_pdrop: Probability = 0.1
    tie_word_embeddings: bool = True

    followed_in = ("4.57", "5.17", "5.23", "5.24")
    aliases = {  # noqa: RUF012 - declared ClassVar in the base class
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings",
        "intermediate_size": "n_inner",
    }
    tasks = ("causal-lm", "seq-cls")
    ignored_keys = frozenset(
        {
            *("n_ctx", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"),
            *("summary_type", "summary_use_proj", "summary_activation"),
            *("summary_first_dropout", "summary_proj_to_labels"),
        }
    )

    @property
    def learned_positions(self) -> int:
        """Rows of the table of positions."""
        return self.max_position_embeddings

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from divides(self, "num_attention_heads", into="hidden_size")

    def new_cache(self) -> Cache:
        """Return an empty cache of keys and values."""
        return dynamic_cache([None] * self.num_hidden_layers)

    def body(self) -> DecoderBody:
        """Return the model without a head, its weights allocated."""
        return DecoderBody(self, Transformer(self))

    def build(self, task: Task) -> GPT2LMHeadModel | SequenceClassifier:
        """Return the model, its weights allocated."""
        if task == "seq-cls":
            transformer = Transformer(self)
            return SequenceClassifier(self, transformer, self.hidden_size, name="transformer")
        return GPT2LMHeadModel(self)
