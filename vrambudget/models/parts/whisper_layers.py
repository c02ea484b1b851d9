"""Whisper's attention, convolutions and layers: mBART's, but q scaled and all three laid out anew.

Source: models/whisper/modeling_whisper.py (WhisperAttention, WhisperEncoder) of transformers 5.17.
"""

from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts import bart_layers, norm_first_layers
from vrambudget.ops.convolution import convolution
from vrambudget.ops.convolution_kernels import Geometry
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.ops.shape import contiguous

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


class Attention(bart_layers.Attention):
    """WhisperAttention: keys have no bias."""

    key_bias = False

    def query(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, H, T, D]."""
        return self.heads(mul_scalar(self.q_proj(hidden_states)))

    def heads(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, H, T, D], laid out anew."""
        return contiguous(super().heads(x))


class EncoderLayer(norm_first_layers.EncoderLayer):
    """WhisperEncoderLayer."""

    attention = Attention


class DecoderLayer(norm_first_layers.DecoderLayer):
    """WhisperDecoderLayer."""

    attention = Attention
