"""What stands around GPT-2's recorded layers (models/gpt2/modeling_gpt2.py): learned positions.

Attention by single operations is its own, too: the softmax in the scores' dtype, the result not
made contiguous. Transformers 4.57 applies each layer's own mask there, whose numbers are tensors.

Not modelled: cross-attention, `reorder_and_upcast_attn` with eager attention.
"""

from functools import partial
from typing import Any

from vrambudget.dtypes import bool_
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.attention import Attended, EagerAttention
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.decoder import DecoderConfig, Model
from vrambudget.models.parts.layers import Dropout, Embedding
from vrambudget.models.parts.masks import causal_mask, look_for_padding, positions
from vrambudget.ops.creation import made
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import add, div_by_constant, mul_scalar, where_scalar
from vrambudget.ops.linear import matmul
from vrambudget.ops.shape import transpose
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
    """GPT-2's own; `causal` [1, 1, P, P] is a layer's mask."""
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
    """GPT2Attention: before 5.2 with a causal mask [1, 1, P, P] and the lowest score."""

    causal: tuple[Tensor, Tensor] | None = None

    def __init__(self, length: int) -> None:
        if transformers_since(5, 2):
            return
        ones = made("ones", (length, length), bool_)
        with made_for(Purpose.WEIGHTS):
            triangle = made("tril", (1, 1, length, length), bool_)
            del ones
            self.causal = triangle, made("tensor", (), context.options.dtype)


class Transformer(Model):
    """GPT2Model."""

    config: "GPT2Config"

    def begin(self) -> None:
        """Make positions and what drops their sum with words out."""
        config = self.config
        self.wpe = Embedding(config.max_position_embeddings, config.hidden_size)
        self.drop = Dropout(config.embd_pdrop)

    def finish(self) -> None:
        """Make the norm behind the layers."""
        self.ln_f = self.config.norm(self.config.hidden_size)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C]."""
        if attention_mask is None and self.config.pad_token_id is not None:
            look_for_padding(input_ids.shape[0])
        inputs_embeds = self.embedded(input_ids)
        if position_ids is None:
            position_ids = positions(input_ids.shape[1])
        position_embeds = self.wpe(position_ids)
        hidden_states = add(inputs_embeds, position_embeds)
        mask = causal_mask(inputs_embeds, position_ids, attention_mask, past_key_values)
        hidden_states = self.drop(hidden_states)
        for block in self.module("layers"):
            hidden_states = block(
                hidden_states, (), mask, position_ids=position_ids, past_key_values=past_key_values
            )
        y: Tensor = self.ln_f(hidden_states)
        return y


class GPT2Config(DecoderConfig):
    """What GPT-2's configuration has besides its keys."""

    embd_pdrop: float

    @property
    def learned_positions(self) -> int:
        """Rows of the table of positions."""
        return self.max_position_embeddings

    def inner(self, path: str) -> Module:
        """Return a layer's module that has modules."""
        return Attention(self.max_position_embeddings) if path == "attn" else super().inner(path)

    def eager(self, layer: Module) -> EagerAttention:
        """Return how a layer attends by single operations."""
        causal = layer.attn.causal  # type: ignore[attr-defined] # `inner` made it
        return partial(eager_attention, causal=causal and causal[0])

    def decoder(self) -> Transformer:
        """Return the model that heads stand on, its weights allocated."""
        return Transformer(self)
