"""Layers of encoder-decoders with norms before each part: mBART, Whisper.

    x + dropout(part(norm(x)))  for attention, in a decoder attention to the encoder, feed-forward

Source: models/mbart/modeling_mbart.py (MBartEncoderLayer, MBartDecoderLayer),
models/whisper/modeling_whisper.py of transformers 5.17.
"""

from vrambudget.dtypes import float16
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts import bart_layers
from vrambudget.models.parts.cache import EncoderDecoderCache
from vrambudget.ops.clamp import clamp_to_numbers
from vrambudget.ops.elementwise import add


class EncoderLayer(bart_layers.Layer):
    """MBartEncoderLayer: in float16 it ends with a clamp."""

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        """[B, S, C] -> [B, S, C]."""
        residual = hidden_states
        hidden_states = self.self_attn_layer_norm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states, mask=mask)
        hidden_states = self.dropped(hidden_states)
        hidden_states = add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.feed_forward(self.final_layer_norm(hidden_states))
        hidden_states = add(residual, hidden_states)
        if hidden_states.dtype is float16:
            hidden_states = clamp_to_numbers(hidden_states, both=True)
        return hidden_states


class DecoderLayer(bart_layers.DecoderLayer):
    """MBartDecoderLayer."""

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None,
        encoder_hidden_states: Tensor,
        *,
        encoder_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
    ) -> Tensor:
        """[B, T, C], [B, S, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states = self.self_attn_layer_norm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states, mask=mask, cache=cache)
        hidden_states = self.dropped(hidden_states)
        hidden_states = add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.encoder_attn_layer_norm(hidden_states)
        hidden_states, _ = self.encoder_attn(
            hidden_states, key_value_states=encoder_hidden_states, mask=encoder_mask, cache=cache
        )
        hidden_states = self.dropped(hidden_states)
        hidden_states = add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.feed_forward(self.final_layer_norm(hidden_states))
        return add(residual, hidden_states)
