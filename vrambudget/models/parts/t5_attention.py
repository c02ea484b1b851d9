"""T5's attention (models/t5/modeling_t5.py): scores that are not scaled but biased by distance.

    position_bias  [1, H, Sq, Sk]   from a table [buckets, H]; the first layer makes it, the others
                                    reuse it, and its gradient adds up over them

For sdpa the bias is the mask; a causal or padded one is made anew in every layer, since minus
infinities are written over it. The table's output has heads innermost, so PyTorch takes the math
kernel. Attention to the encoder gets a bias of zeros, made by the decoder's first layer.

A decoder caches its keys and values even in training (`use_cache` is on in its own copy of the
configuration), unless it is checkpointed: they are copies, and the outputs hold them.

Source: T5Attention, integrations/sdpa_attention.py (create_position_bias_mask), cache_utils.py
(DynamicLayer.update) of transformers 5.17.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vrambudget.dtypes import bool_, float32, int64
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended, attend
from vrambudget.models.parts.cache import EncoderDecoderCache
from vrambudget.models.parts.encoder import eager_attention
from vrambudget.models.parts.layers import Embedding, Linear
from vrambudget.ops.creation import arange, made
from vrambudget.ops.elementwise import where_scalar
from vrambudget.ops.shape import contiguous, permute, reshape, transpose, unsqueeze, view


@dataclass(frozen=True)
class AttentionSizes:
    """What decides an attention's tensors."""

    hidden_size: int
    heads: int
    head_dim: int
    buckets: int
    dropout: float


class Attention(Module):
    """T5Attention."""

    layer_idx = 0

    def __init__(
        self, sizes: AttentionSizes, *, is_decoder: bool, is_causal: bool, has_bias: bool = False
    ) -> None:
        width, inner = sizes.hidden_size, sizes.heads * sizes.head_dim
        self.sizes, self.is_decoder, self.is_causal = sizes, is_decoder, is_causal
        self.q = Linear(width, inner, bias=False)
        self.k = Linear(width, inner, bias=False)
        self.v = Linear(width, inner, bias=False)
        self.o = Linear(inner, width, bias=False)
        self.relative_attention_bias = Embedding(sizes.buckets, sizes.heads) if has_bias else None

    def forward(
        self,
        hidden_states: Tensor,
        *,
        mask: Tensor | None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None,
        cache: EncoderDecoderCache | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """[B, Sq, C], [B, Sk, C] -> [B, Sq, C], the bias, and eager attention's weights."""
        seen = self._length(cache)
        query = self._heads(self.q(hidden_states))
        key, value = self._keys_and_values(hidden_states, key_value_states, cache)
        if position_bias is None:
            position_bias = self._bias(query, key.shape[2])
        output, weights = self._attend(query, key, value, mask, position_bias)
        output = contiguous(reshape(output, *output.shape[:2], -1))
        output = self.o(output)
        del seen  # held until here
        return output, position_bias, weights

    def _length(self, cache: EncoderDecoderCache | None) -> Tensor | None:
        """Return the copy of a static cache's length, which is on the device."""
        if cache is None or not cache.is_static or not cache.layers[self.layer_idx].seen:
            return None
        return made("clone", (), int64)

    def _keys_and_values(
        self, hidden_states: Tensor, encoded: Tensor | None, cache: EncoderDecoderCache | None
    ) -> tuple[Tensor, Tensor]:
        """Return those of all tokens so far, or of the encoder's states."""
        states = hidden_states if encoded is None else encoded
        if cache is None:
            return self._heads(self.k(states)), self._heads(self.v(states))
        own = cache.self_attention if encoded is None else cache.cross_attention
        layer = own.layers[self.layer_idx]
        if encoded is not None and layer.keys is not None and layer.values is not None:
            return layer.keys, layer.values  # is_updated
        key = self._heads(self.k(states))
        value = self._heads(self.v(states))
        return layer.update(key, value)

    def _heads(self, x: Tensor) -> Tensor:
        """[B, T, H * D] -> [B, H, T, D]."""
        return transpose(view(x, *x.shape[:2], -1, self.sizes.head_dim), 1, 2)

    def _bias(self, query: Tensor, Sk: int) -> Tensor:
        if self.relative_attention_bias is not None:
            return self._computed_bias(self.relative_attention_bias, query.shape[2], Sk)
        zeros = made("zeros", (1, self.sizes.heads, query.shape[2], Sk), query.dtype)
        zeros.requires_grad = context.options.checkpointing and self.training
        return zeros

    def _computed_bias(self, table: Embedding, Sq: int, Sk: int) -> Tensor:
        """compute_bias: [1, H, Sq, Sk], heads innermost in memory."""
        plain = arange(Sq)
        context_position = made("add", (Sq, 1), int64)
        del plain
        memory_position = arange(Sk)
        relative_position = made("sub", (Sq, Sk), int64)
        bucket = _bidirectional_buckets if not self.is_decoder else _causal_buckets
        buckets = bucket((Sq, Sk))
        values = table(buckets)
        del context_position, memory_position, relative_position  # held until here
        return unsqueeze(permute(values, 2, 0, 1), 0)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor
    ) -> Attended:
        dropout_p = self.sizes.dropout if self.training else 0.0
        if context.options.attention == "eager":
            return eager_attention(query, key, value, mask, dropout_p=dropout_p, bias=bias)
        if mask is not None:
            bias = where_scalar(mask, bias)
        elif self.is_causal and query.shape[2] > 1:
            bias = _causal_bias(bias)
        return attend(query, key, value, bias, dropout_p=dropout_p, is_causal=False)


def _causal_bias(bias: Tensor) -> Tensor:
    """create_position_bias_mask: the lowest number where the key comes after the query."""
    Sq, Sk = bias.shape[2:]
    queries, keys = arange(Sq), arange(Sk)
    causal = made("ge", (1, 1, Sq, Sk), bool_)
    del queries, keys
    return where_scalar(causal, bias)


def _bidirectional_buckets(shape: tuple[int, int]) -> Tensor:
    """_relative_position_bucket of an encoder: half of the buckets are for what comes after."""
    is_after = made("gt", shape, bool_)
    as_integers = made("to_dtype", shape, int64)
    del is_after
    half = made("mul", shape, int64)
    del as_integers
    buckets = made("add", shape, int64)
    del half
    distance = made("abs", shape, int64)
    _distance_buckets(shape)  # added in place
    del distance
    return buckets


def _causal_buckets(shape: tuple[int, int]) -> Tensor:
    """_relative_position_bucket of a decoder."""
    zeros = made("zeros_like", shape, int64)
    lowest = made("minimum", shape, int64)
    del zeros
    distance = made("neg", shape, int64)
    del lowest
    held = _distance_buckets(shape)
    buckets = made("add", shape, int64)
    del held, distance
    return buckets


def _distance_buckets(shape: tuple[int, int]) -> Sequence[Tensor]:
    """Near distances have a bucket each, far ones share buckets on a logarithmic scale.

    Return what the caller's frame holds: the buckets and what they were chosen from.
    """
    is_small = made("lt", shape, bool_)
    scaled = made("to_dtype", shape, float32)
    for operation in ("div", "log", "div", "mul"):
        scaled = made(operation, shape, float32)
    steps = made("to_dtype", shape, int64)
    del scaled
    far = made("add", shape, int64)
    del steps
    last = made("full_like", shape, int64)
    nearest = made("minimum", shape, int64)
    del last, far
    return is_small, nearest, made("where", shape, int64)
