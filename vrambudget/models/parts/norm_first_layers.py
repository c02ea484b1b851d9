"""Layers of encoder-decoders with norms before each part: mBART, Whisper.

    x + dropout(part(norm(x)))  for attention, in a decoder attention to the encoder, feed-forward

Source: models/mbart/modeling_mbart.py (MBartEncoderLayer, MBartDecoderLayer),
models/whisper/modeling_whisper.py of transformers 5.17.
"""

from typing import Any, ClassVar

from vrambudget.dtypes import float16
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.bart_layers import Attention, Sizes
from vrambudget.models.parts.layers import CheckpointedLayer, LayerNorm, Linear
from vrambudget.ops.clamp import clamp_to_numbers
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import ACTIVATIONS, add


class _Layer(CheckpointedLayer):
    """What encoder and decoder layers share."""

    attention: ClassVar[Any] = Attention  # Whisper has its own
    fc1: Linear
    fc2: Linear
    final_layer_norm: LayerNorm

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def dropped(self, x: Tensor) -> Tensor:
        """nn.functional.dropout of the model's own probability."""
        return dropout(x, self.sizes.dropout, training=self.training)

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        sizes = self.sizes
        residual = hidden_states
        hidden_states = self.final_layer_norm(hidden_states)
        hidden_states = ACTIVATIONS[sizes.activation](self.fc1(hidden_states))
        hidden_states = dropout(hidden_states, sizes.activation_dropout, training=self.training)
        hidden_states = self.fc2(hidden_states)
        hidden_states = self.dropped(hidden_states)
        return add(residual, hidden_states)


class EncoderLayer(_Layer):
    """MBartEncoderLayer: in float16 it ends with a clamp."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.self_attn = self.attention(sizes)
        self.self_attn_layer_norm = LayerNorm(sizes.width)
        self.fc1 = Linear(sizes.width, sizes.inner)
        self.fc2 = Linear(sizes.inner, sizes.width)
        self.final_layer_norm = LayerNorm(sizes.width)

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        """[B, S, C] -> [B, S, C]."""
        residual = hidden_states
        hidden_states = self.self_attn_layer_norm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states, mask=mask)
        hidden_states = self.dropped(hidden_states)
        hidden_states = add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.feed_forward(hidden_states)
        if hidden_states.dtype is float16:
            hidden_states = clamp_to_numbers(hidden_states, both=True)
        return hidden_states


class DecoderLayer(_Layer):
    """MBartDecoderLayer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.self_attn = self.attention(sizes, is_causal=True)
        self.self_attn_layer_norm = LayerNorm(sizes.width)
        self.encoder_attn = self.attention(sizes)
        self.encoder_attn_layer_norm = LayerNorm(sizes.width)
        self.fc1 = Linear(sizes.width, sizes.inner)
        self.fc2 = Linear(sizes.inner, sizes.width)
        self.final_layer_norm = LayerNorm(sizes.width)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None,
        encoder_hidden_states: Tensor,
        *,
        encoder_mask: Tensor | None = None,
        **given: Any,
    ) -> Tensor:
        """[B, T, C], [B, S, C] -> [B, T, C]; `given` is what attention reads besides."""
        residual = hidden_states
        hidden_states = self.self_attn_layer_norm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states, mask=mask, **given)
        hidden_states = self.dropped(hidden_states)
        hidden_states = add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.encoder_attn_layer_norm(hidden_states)
        hidden_states, _ = self.encoder_attn(
            hidden_states, key_value_states=encoder_hidden_states, mask=encoder_mask, **given
        )
        hidden_states = self.dropped(hidden_states)
        hidden_states = add(residual, hidden_states)
        del residual
        return self.feed_forward(hidden_states)
