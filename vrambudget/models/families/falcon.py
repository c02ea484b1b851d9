"""What stands around Falcon's recorded layers (models/falcon/modeling_falcon.py): 7B, 40B, RW.

    multi_query                one head of keys and values; attention and MLP side by side (7B)
    new_decoder_architecture   groups of heads, keys and values repeated; two norms (40B, 180B)
    neither                    attention, then MLP; with `alibi`, distances, no positions (RW)

A causal mask is always made, so sdpa takes no flash kernel; a single head of keys and values fits
no fused kernel at all. ALiBi is a bias of attention's scores by the distance of key and query:

    alibi [B * H, 1, S]   of the tokens so far [B, S], a slope for each head
    mask  [B, H, T, S]    the bias over sqrt(D), the lowest number where a token is not seen

Source: models/falcon/modeling_falcon.py (build_alibi_tensor, FalconModel.forward).
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from vrambudget.dtypes import DType, bfloat16, bool_, float32, int32, int64
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.decoder import DecoderConfig, Model
from vrambudget.models.parts.masks import causal_mask, positions
from vrambudget.ops.creation import made
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import add
from vrambudget.ops.fill import mul_number_
from vrambudget.ops.linear import matmul
from vrambudget.ops.scan import cumsum
from vrambudget.ops.shape import transpose, view
from vrambudget.ops.softmax import softmax


class FalconModel(Model):
    """FalconModel."""

    config: "FalconConfig"

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C]."""
        inputs_embeds = self.embedded(input_ids)
        dtype, (B, T, _) = inputs_embeds.dtype, inputs_embeds.shape
        heads = self.config.num_attention_heads
        alibi = tokens = None
        if self.config.alibi:
            seen = 0 if past_key_values is None else past_key_values.seen
            tokens = attention_mask
            if tokens is None:
                tokens = made("ones", (B, seen + T), int64)
            if tokens.ndim != 2:  # noqa: PLR2004 - build_alibi_tensor counts the tokens of rows
                raise NotModelledError(
                    "transformers' Falcon with ALiBi ends in a ValueError with a static cache",
                    hint="use --cache dynamic",
                )
            alibi = alibi_of(tokens, heads, dtype)
        if position_ids is None:
            position_ids = positions(T)
        mask = causal_mask(inputs_embeds, None, attention_mask, past_key_values, skips=False)
        assert mask is not None  # noqa: S101 - it is never skipped
        if alibi is not None:
            mask = numeric_mask(mask, dtype)
            mask = biased_mask(mask, heads, dtype)
        hidden_states = inputs_embeds
        rotary = self.rotary_emb(position_ids, dtype)
        both = alibi is not None and context.options.attention == "eager"
        for layer in self.module("layers"):
            outputs = layer(
                hidden_states,
                rotary=rotary,
                mask=(mask, alibi) if both else mask,
                position_ids=(position_ids, alibi),
                past_key_values=past_key_values,
            )
            hidden_states = outputs[0] if isinstance(outputs, tuple) else outputs
        y: Tensor = self.module("norm")(hidden_states)
        del tokens, outputs  # held until here
        return y


def alibi_of(tokens: Tensor, heads: int, dtype: DType) -> Tensor:
    """build_alibi_tensor of a mask of tokens [B, S] int64: [B * H, 1, S]."""
    B, S = tokens.shape
    power = 2 ** math.floor(math.log2(heads))
    base, powers, slopes = _slopes(power)
    extra: list[Tensor] = []
    if power != heads:
        *extra, more = _slopes(heads - power)
        slopes = made("cat", (heads,), float32)
        del more
    counts = cumsum(tokens, int64)
    before = made("sub", (B, S), int64)
    del counts
    places = made("mul", (B, S), int64)
    del before
    cast = made("to_dtype", (heads, 1), bfloat16)
    alibi = made("mul", (B, heads, S), bfloat16)
    del cast
    result = alibi if dtype is bfloat16 else made("to_dtype", (B * heads, 1, S), dtype)
    del extra, base, powers, slopes, places  # held until here
    return result


def _slopes(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the base, `count` powers of it to raise it to, and the slopes."""
    base = made("full", (), float32)
    powers = made("arange", (count,), int32)
    return base, powers, made("pow", (count,), float32)


def numeric_mask(mask: Tensor, dtype: DType) -> Tensor:
    """Return a causal mask [B, 1, T, S] as zeros and the lowest number: eager attention's is."""
    if mask.dtype is not bool_:
        return mask
    zero = made("full", (), dtype)
    lowest = made("scalar_tensor", (), dtype)
    numbers = made("where", mask.shape, dtype)
    del zero, lowest
    return numbers


def biased_mask(mask: Tensor, heads: int, dtype: DType) -> Tensor:
    """Return the bias of each head, the lowest number where a mask [B, 1, T, S] hides a token."""
    B, _, T, S = mask.shape
    scaled = made("div", (B, heads, 1, S), dtype)
    hidden = made("lt", mask.shape, bool_)
    biased = made("masked_fill", (B, heads, T, S), dtype)
    del scaled, hidden
    return biased


def eager_attention(  # of a layer's alibi the mask comes with it
    query: Tensor, key: Tensor, value: Tensor, mask: Any, *, dropout_p: float
) -> tuple[Tensor, tuple[Tensor], tuple[Tensor, ...]]:
    """[B, H, T, D] -> the same, the probabilities, and what forward holds of scores."""
    dtype = query.dtype if context.autocast is None else float32  # of what a norm returns
    matmul_result = matmul(query, transpose(key, 2, 3))
    if isinstance(mask, Tensor):
        scores = mul_number_(matmul_result)
        weights = softmax(add(scores, mask), dtype=dtype)
        return matmul(weights, value), (weights,), ()
    mask, alibi = mask
    scores = to(matmul_result, float32)
    B, H = query.shape[:2]
    logits = mul_number_(add(scores, view(alibi, B, H, 1, -1)))
    weights = dropout(softmax(add(logits, mask), dtype=dtype), dropout_p)
    return matmul(weights, value), (weights,), (matmul_result, scores, logits)


class FalconConfig(DecoderConfig):
    """What Falcon's configuration has besides its keys."""

    alibi: bool
    multi_query: bool
    new_decoder_architecture: bool
    num_ln_in_parallel_attn: int | None
    parallel_attn: bool

    aliases = {"n_embed": "hidden_size"}  # noqa: RUF012 - declared ClassVar in the base class
    loads_in_4bit = False
    sees_packed_rows = False  # its mask is made without positions

    @property
    def kv_heads(self) -> int:
        """Heads of key and value, as the projection has them."""
        if self.new_decoder_architecture or not self.multi_query:
            return self.num_key_value_heads or self.num_attention_heads
        return 1

    @property
    def has_two_norms(self) -> bool:
        """Whether attention and MLP, side by side, have a norm each."""
        return self.new_decoder_architecture and self.num_ln_in_parallel_attn != 1

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.new_decoder_architecture:
            if not self.parallel_attn:
                yield "new_decoder_architecture has attention and MLP side by side (parallel_attn)"
        elif self.num_ln_in_parallel_attn == 2 and self.parallel_attn:  # noqa: PLR2004
            yield "num_ln_in_parallel_attn is 2; that takes new_decoder_architecture"
        elif self.kv_heads not in {1, self.num_attention_heads}:
            yield "num_kv_heads takes new_decoder_architecture"

    def eager(self, layer: Module) -> Any:
        """Return how a layer attends by single operations."""
        rate = self.attention_dropout if self.alibi and layer.training else 0.0
        return partial(eager_attention, dropout_p=rate)

    def decoder(self) -> FalconModel:
        """Return the model that heads stand on, its weights allocated."""
        return FalconModel(self)
