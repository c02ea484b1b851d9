"""BART's layers: attention, in a decoder to the encoder too, and a feed-forward part; norms after.

    norm(x + dropout(part(x)))  for each part

Source: models/bart/modeling_bart.py of transformers 5.17.
"""

from dataclasses import dataclass

from vrambudget.dtypes import bool_, float16
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended, attend
from vrambudget.models.parts.cache import EncoderDecoderCache
from vrambudget.models.parts.encoder import eager_attention, heads
from vrambudget.models.parts.layers import CheckpointedLayer, LayerNorm, Linear
from vrambudget.ops.clamp import is_finite
from vrambudget.ops.creation import made
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import ACTIVATIONS, add
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.ops.shape import contiguous, reshape


@dataclass(frozen=True)
class Sizes:
    """What decides a stack's tensors."""

    width: int
    heads: int
    inner: int
    layers: int
    activation: str
    dropout: float
    attention_dropout: float
    activation_dropout: float


class Attention(Module):
    """BartAttention."""

    layer_idx = 0

    def __init__(self, sizes: Sizes, *, is_causal: bool = False) -> None:
        width = sizes.width
        self.is_causal, self.dropout_p = is_causal, sizes.attention_dropout
        self.head_dim = width // sizes.heads
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.q_proj = Linear(width, width)
        self.out_proj = Linear(width, width)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None,
        key_value_states: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
    ) -> Attended:
        """[B, T, C], [B, S, C] -> [B, T, C] and the weights."""
        query = self.heads(self.q_proj(hidden_states))
        key, value = self._keys_and_values(hidden_states, key_value_states, cache)
        output, weights = attend(
            query,
            key,
            value,
            mask,
            dropout_p=self.dropout_p if self.training else 0.0,
            is_causal=self.is_causal,
            eager=eager_attention,
        )
        output = contiguous(reshape(output, *output.shape[:2], -1))
        output = self.out_proj(output)
        return output, weights

    def heads(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, H, T, D]."""
        return heads(x, self.head_dim)

    def _keys_and_values(
        self, hidden_states: Tensor, encoded: Tensor | None, cache: EncoderDecoderCache | None
    ) -> tuple[Tensor, Tensor]:
        """Return those of all tokens so far, or of the encoder's states [B, S, C]."""
        layer = None
        if cache is not None:
            own = cache.self_attention if encoded is None else cache.cross_attention
            layer = own.layers[self.layer_idx]
            if encoded is not None and layer.keys is not None and layer.values is not None:
                return layer.keys, layer.values  # is_updated
        states = hidden_states if encoded is None else encoded
        key = self.heads(self.k_proj(states))
        value = self.heads(self.v_proj(states))
        return (key, value) if layer is None else layer.update(key, value)


class Layer(CheckpointedLayer):
    """What encoder and decoder layers are made of."""

    def __init__(self, sizes: Sizes, *, decodes: bool = False) -> None:
        self.sizes = sizes
        self.self_attn = Attention(sizes, is_causal=decodes)
        self.self_attn_layer_norm = LayerNorm(sizes.width)
        if decodes:
            self.encoder_attn = Attention(sizes)
            self.encoder_attn_layer_norm = LayerNorm(sizes.width)
        self.fc1 = Linear(sizes.width, sizes.inner)
        self.fc2 = Linear(sizes.inner, sizes.width)
        self.final_layer_norm = LayerNorm(sizes.width)

    def dropped(self, x: Tensor) -> Tensor:
        """nn.functional.dropout of the model's own probability."""
        return dropout(x, self.sizes.dropout, training=self.training)

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        sizes = self.sizes
        hidden_states = ACTIVATIONS[sizes.activation](self.fc1(hidden_states))
        hidden_states = dropout(hidden_states, sizes.activation_dropout, training=self.training)
        hidden_states = self.fc2(hidden_states)
        return self.dropped(hidden_states)


class EncoderLayer(Layer):
    """BartEncoderLayer: in float16 it looks for infinities."""

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        """[B, S, C] -> [B, S, C]."""
        residual = hidden_states
        hidden_states, _ = self.self_attn(hidden_states, mask=mask)
        hidden_states = self.dropped(hidden_states)
        hidden_states = add(residual, hidden_states)
        hidden_states = self.self_attn_layer_norm(hidden_states)
        residual = hidden_states
        hidden_states = add(residual, self.feed_forward(hidden_states))
        hidden_states = self.final_layer_norm(hidden_states)
        if hidden_states.dtype is float16:
            _all_finite(hidden_states)
        return hidden_states


def _all_finite(x: Tensor) -> None:
    """torch.isfinite(x).all(), read back."""
    finite = is_finite(x)
    every = made("all", (), bool_)
    with_partial_sums(finite, tuple(range(x.ndim)), accumulator=1)
    del every


class DecoderLayer(Layer):
    """BartDecoderLayer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes, decodes=True)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None,
        encoder_hidden_states: Tensor,
        *,
        encoder_mask: Tensor | None,
        cache: EncoderDecoderCache | None = None,
    ) -> Tensor:
        """[B, T, C], [B, S, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states, _ = self.self_attn(hidden_states, mask=mask, cache=cache)
        hidden_states = self.dropped(hidden_states)
        hidden_states = add(residual, hidden_states)
        hidden_states = self.self_attn_layer_norm(hidden_states)
        residual = hidden_states
        hidden_states, _ = self.encoder_attn(
            hidden_states, key_value_states=encoder_hidden_states, mask=encoder_mask, cache=cache
        )
        hidden_states = self.dropped(hidden_states)
        hidden_states = add(residual, hidden_states)
        hidden_states = self.encoder_attn_layer_norm(hidden_states)
        residual = hidden_states
        hidden_states = add(residual, self.feed_forward(hidden_states))
        y: Tensor = self.final_layer_norm(hidden_states)
        return y
