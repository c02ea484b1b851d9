"""T5's layers: attention to itself, in a decoder to the encoder, and the feed-forward part.

Source: T5LayerSelfAttention, T5LayerCrossAttention, T5Block of transformers 5.17.
"""

from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.cache import EncoderDecoderCache
from vrambudget.models.parts.layers import CheckpointedLayer, Dropout
from vrambudget.models.parts.t5_attention import Attention, AttentionSizes
from vrambudget.models.parts.t5_layers import FeedForwardSizes, LayerFF, Norm, clamp_bound, clamped
from vrambudget.ops.elementwise import add

Attended = tuple[Tensor, Tensor, Tensor | None]
"""Hidden states, the position bias, and eager attention's weights."""


class LayerSelfAttention(Module):
    """T5LayerSelfAttention."""

    def __init__(self, sizes: AttentionSizes, *, is_decoder: bool, has_bias: bool) -> None:
        self.SelfAttention = Attention(
            sizes, is_decoder=is_decoder, is_causal=is_decoder, has_bias=has_bias
        )
        self.layer_norm = Norm(sizes.hidden_size)
        self.dropout = Dropout(sizes.dropout)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None,
        position_bias: Tensor | None,
        cache: EncoderDecoderCache | None,
    ) -> Attended:
        """[B, T, C] -> [B, T, C]."""
        normed_hidden_states = self.layer_norm(hidden_states)
        attention_output, position_bias, weights = self.SelfAttention(
            normed_hidden_states, mask=mask, position_bias=position_bias, cache=cache
        )
        attention_output = add(hidden_states, self.dropout(attention_output))
        del normed_hidden_states  # held until here
        return attention_output, position_bias, weights


class LayerCrossAttention(Module):
    """T5LayerCrossAttention."""

    def __init__(self, sizes: AttentionSizes) -> None:
        self.EncDecAttention = Attention(sizes, is_decoder=True, is_causal=False)
        self.layer_norm = Norm(sizes.hidden_size)
        self.dropout = Dropout(sizes.dropout)

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor,
        mask: Tensor | None,
        position_bias: Tensor | None,
        cache: EncoderDecoderCache | None,
    ) -> Attended:
        """[B, T, C], [B, S, C] -> [B, T, C]."""
        normed_hidden_states = self.layer_norm(hidden_states)
        attention_output, position_bias, weights = self.EncDecAttention(
            normed_hidden_states,
            mask=mask,
            key_value_states=key_value_states,
            position_bias=position_bias,
            cache=cache,
        )
        layer_output = add(hidden_states, self.dropout(attention_output))
        del normed_hidden_states, attention_output  # held until here
        return layer_output, position_bias, weights


class Block(CheckpointedLayer):
    """T5Block."""

    def __init__(
        self,
        sizes: AttentionSizes,
        feed_forward: FeedForwardSizes,
        *,
        is_decoder: bool,
        is_first: bool,
    ) -> None:
        attention = LayerSelfAttention(sizes, is_decoder=is_decoder, has_bias=is_first)
        cross = [LayerCrossAttention(sizes)] if is_decoder else []
        self.layer = [attention, *cross, LayerFF(feed_forward)]

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None,
        position_bias: Tensor | None,
        encoder_hidden_states: Tensor | None,
        encoder_decoder_position_bias: Tensor | None,
        *,
        encoder_mask: Tensor | None,
        cache: EncoderDecoderCache | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """[B, T, C] -> [B, T, C] and both position biases."""
        hidden_states, self_bias, _ = self.layer[0](hidden_states, mask, position_bias, cache)
        bound = clamp_bound(hidden_states)  # held until the next or the end
        hidden_states = clamped(hidden_states, bound)
        cross_bias = None
        if encoder_hidden_states is not None:
            hidden_states, cross_bias, _ = self.layer[1](
                hidden_states,
                encoder_hidden_states,
                encoder_mask,
                encoder_decoder_position_bias,
                cache,
            )
            bound = clamp_bound(hidden_states)
            hidden_states = clamped(hidden_states, bound)
        hidden_states = self.layer[-1](hidden_states)
        bound = clamp_bound(hidden_states)
        hidden_states = clamped(hidden_states, bound)
        return hidden_states, self_bias, cross_bias
