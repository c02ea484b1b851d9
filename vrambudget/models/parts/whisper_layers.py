"""Whisper's attention, convolutions and layers: mBART's, but q scaled and all three laid out anew.

Source: models/whisper/modeling_whisper.py (WhisperAttention, WhisperEncoder) of transformers 5.17.
"""

from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts import norm_first_layers
from vrambudget.models.parts.attention import Attended, attend
from vrambudget.models.parts.bart_layers import Sizes
from vrambudget.models.parts.cache import EncoderDecoderCache
from vrambudget.models.parts.encoder import eager_attention, heads
from vrambudget.models.parts.layers import Linear
from vrambudget.ops.convolution import convolution
from vrambudget.ops.convolution_kernels import Geometry
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.ops.shape import contiguous, reshape

_KERNEL = 3


class Convolution(Module):
    """nn.Conv1d of three frames: weight [O, I, 3]."""

    def __init__(self, channels: int, out_channels: int, *, stride: int = 1) -> None:
        self.weight = Parameter((out_channels, channels, _KERNEL), context.options.dtype)
        self.bias = Parameter((out_channels,), context.options.dtype)
        self.geometry = Geometry((stride,), (1,), (1,))

    def forward(self, x: Tensor) -> Tensor:
        """[B, I, F] -> [B, O, F / stride]."""
        return convolution(x, self.weight, self.bias, self.geometry)


class Attention(Module):
    """WhisperAttention: keys have no bias."""

    def __init__(self, sizes: Sizes, *, is_causal: bool = False) -> None:
        width = sizes.width
        self.is_causal, self.dropout_p = is_causal, sizes.attention_dropout
        self.head_dim = width // sizes.heads
        self.layer_idx = 0
        self.k_proj = Linear(width, width, bias=False)
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
        query = self._heads(mul_scalar(self.q_proj(hidden_states)))
        states = hidden_states if key_value_states is None else key_value_states
        key = self._heads(self.k_proj(states))
        value = self._heads(self.v_proj(states))
        if cache is not None:
            crosses = key_value_states is not None
            own = cache.cross_attention if crosses else cache.self_attention
            key, value = own.update(key, value, self.layer_idx)
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

    def _heads(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, H, T, D], laid out anew."""
        return contiguous(heads(x, self.head_dim))


class EncoderLayer(norm_first_layers.EncoderLayer):
    """WhisperEncoderLayer."""

    attention = Attention


class DecoderLayer(norm_first_layers.DecoderLayer):
    """WhisperDecoderLayer."""

    attention = Attention
