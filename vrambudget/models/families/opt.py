"""What stands around OPT's recorded layers (models/opt/modeling_opt.py).

Learned positions that begin at row 2, counted by a running sum over an attention mask of ones; that
mask goes into the causal one. Projections into and out of the width of the embeddings where it
differs. Transformers 4.57 has a mask of its own, which is added to the scores.

Source: modeling_attn_mask_utils.py (AttentionMaskConverter), models/opt/modeling_opt.py of
transformers 4.57.
Not modelled: LayerDrop (`layerdrop`), which skips layers at random.
"""

from typing import Any

from vrambudget.config.settings import Size
from vrambudget.dtypes import bool_, float32, int64, promote
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.decoder import DecoderConfig, Model
from vrambudget.models.parts.layers import Embedding, Linear
from vrambudget.models.parts.masks import causal_mask
from vrambudget.ops.creation import arange, made
from vrambudget.ops.elementwise import add
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.ops.scan import cumsum
from vrambudget.ops.shape import narrowed

_FIRST_POSITION = 2


class Decoder(Model):
    """OPTDecoder."""

    config: "OPTConfig"

    def begin(self) -> None:
        """Make positions, projections, and the norm behind the layers."""
        config, width = self.config, self.config.hidden_size
        self.embed_positions = Embedding(config.max_position_embeddings + _FIRST_POSITION, width)
        projects = config.embedding_width != width
        self.project_out = Linear(width, config.embedding_width, bias=False) if projects else None
        self.project_in = Linear(config.embedding_width, width, bias=False) if projects else None
        has_norm = config.do_layer_norm_before and not config.remove_final_layer_norm
        self.final_layer_norm = config.norm(width) if has_norm else None

    def finish(self) -> None:
        """Make nothing more."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C of the embeddings]."""
        inputs_embeds = self.embedded(input_ids)
        held: list[Tensor] = []  # which a checkpoint keeps
        if not transformers_since(5, 2):
            held.append(arange(input_ids.shape[1]))
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
        held.append(position_ids)
        pos_embeds = self.embed_positions(made("add", position_ids.shape, int64))
        if self.project_in is not None:
            inputs_embeds = self.project_in(inputs_embeds)
        hidden_states = add(inputs_embeds, pos_embeds)
        for layer in self.module("layers"):
            hidden_states = layer(
                hidden_states,
                rotary=(),
                mask=mask,
                position_ids=held,
                past_key_values=past_key_values,
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


def tokens_of(embeddings: Tensor, padding: Tensor | None) -> Tensor:
    """Return a tokenizer's mask [B, T], or one of ones instead, which the model holds."""
    return made("ones", embeddings.shape[:2], float32) if padding is None else padding


def additive_causal_mask(embeddings: Tensor, tokens: Tensor) -> Tensor | None:
    """OPTDecoder._update_causal_mask for embeddings [B, T, C] and tokens [B, T]."""
    B, T = embeddings.shape[:2]
    dtype, is_sdpa = embeddings.dtype, context.options.attention == "sdpa"
    if is_sdpa:
        _all_ones(tokens)
        if context.options.full_rows:
            return None
    mask = made("full", (T, T), dtype)
    if T > 1:
        mask = made("triu", (T, T), dtype)
    places = arange(T)
    after = made("gt", (T, T), bool_)
    del places, after
    mask = made("clone", (B, 1, T, T), dtype)
    padded = made("add", (B, 1, T, T), promote(dtype, tokens.dtype))
    padding = made("eq", (B, 1, T, T), bool_)
    del padded
    filled = made("masked_fill", (B, 1, T, T), dtype)
    del filled, padding
    return _unmask_unattended(mask) if is_sdpa else mask


def _unmask_unattended(mask: Tensor) -> Tensor:
    """mask.mul(~torch.all(mask == lowest, dim=-1, keepdim=True))."""
    lowest = made("eq", mask.shape, bool_)
    rows = made("all", (*mask.shape[:-1], 1), bool_)
    with_partial_sums(lowest, (-1,), accumulator=1)
    del lowest
    others = made("bitwise_not", rows.shape, bool_)
    del rows
    unmasked = made("mul", mask.shape, mask.dtype)
    del others
    return unmasked


def _all_ones(tokens: Tensor) -> None:
    """torch.all(tokens == 1), read back."""
    are_ones = made("eq", tokens.shape, bool_)
    every = made("all", (), bool_)
    with_partial_sums(are_ones, (0, 1), accumulator=1)
    del are_ones, every


class OPTModel(Module):
    """A decoder, under its name."""

    def __init__(self, config: "OPTConfig") -> None:
        self.decoder = Decoder(config)

    def module(self, name: str) -> Any:
        """Return what Llama calls by this name."""
        return self.decoder.module(name)

    def forward(self, *given: Any, **named: Any) -> Tensor:
        """[B, T] -> [B, T, C of the embeddings]."""
        hidden_states: Tensor = self.decoder(*given, **named)
        return hidden_states


class OPTConfig(DecoderConfig):
    """What OPT's configuration has besides its keys."""

    word_embed_proj_dim: Size | None
    remove_final_layer_norm: bool
    do_layer_norm_before: bool

    sees_packed_rows = False  # its own mask of ones stands before positions

    @property
    def keeps_all_logits(self) -> bool:
        """Before transformers 5.0."""
        return not transformers_since(5, 0)

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings and of the head."""
        return self.word_embed_proj_dim or self.hidden_size

    @property
    def learned_positions(self) -> int:
        """Positions that have a row."""
        return self.max_position_embeddings

    def decoder(self) -> OPTModel:
        """Return the model that heads stand on, its weights allocated."""
        return OPTModel(self)
