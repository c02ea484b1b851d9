"""T5's norm and feed-forward layers, and what keeps float16 finite (models/t5/modeling_t5.py).

    Norm       x * rsqrt(mean(x ** 2) + eps) * weight, the mean in float32
    LayerFF    x + dropout(wo(dropout(act(wi(norm(x)))))), or act(wi_0(x)) * wi_1(x) if gated

Source: T5LayerNorm, T5DenseActDense, T5DenseGatedActDense, T5LayerFF, T5Block of transformers 5.17.
Not modelled: apex' fused norm, which takes T5LayerNorm's place where it is installed.
"""

from dataclasses import dataclass

from vrambudget.dtypes import float16, float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts.layers import Dropout, Linear
from vrambudget.ops.clamp import any_infinite, choose_number, clamp
from vrambudget.ops.elementwise import (
    ACTIVATIONS,
    add,
    add_scalar,
    mul,
    neg,
    pow_scalar,
    rsqrt,
)
from vrambudget.ops.reduce import mean_last


@dataclass(frozen=True)
class FeedForwardSizes:
    """What decides a feed-forward layer's tensors."""

    hidden_size: int
    intermediate_size: int
    activation: str
    is_gated: bool
    dropout: float


class Norm(Module):
    """T5LayerNorm: weight [C]; the mean of squares in float32."""

    def __init__(self, width: int) -> None:
        self.weight = Parameter((width,), context.options.dtype)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        variance = mean_last(pow_scalar(to(hidden_states, float32)))  # held until this returns
        hidden_states = mul(hidden_states, rsqrt(add_scalar(variance)))
        if self.weight.dtype is not float32:
            hidden_states = to(hidden_states, self.weight.dtype)
        return mul(self.weight, hidden_states)


class DenseActDense(Module):
    """T5DenseActDense."""

    def __init__(self, sizes: FeedForwardSizes) -> None:
        self.wi = Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.wo = Linear(sizes.intermediate_size, sizes.hidden_size, bias=False)
        self.dropout = Dropout(sizes.dropout)
        self.act = ACTIVATIONS[sizes.activation]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        hidden_states = self.wi(hidden_states)
        hidden_states = self.act(hidden_states)
        hidden_states = self.dropout(hidden_states)
        hidden_states = to(hidden_states, self.wo.weight.dtype)  # a copy under autocast
        projected: Tensor = self.wo(hidden_states)
        return projected


class DenseGatedActDense(Module):
    """T5DenseGatedActDense."""

    def __init__(self, sizes: FeedForwardSizes) -> None:
        self.wi_0 = Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.wi_1 = Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.wo = Linear(sizes.intermediate_size, sizes.hidden_size, bias=False)
        self.dropout = Dropout(sizes.dropout)
        self.act = ACTIVATIONS[sizes.activation]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        hidden_gelu = self.act(self.wi_0(hidden_states))
        hidden_linear = self.wi_1(hidden_states)
        hidden_states = mul(hidden_gelu, hidden_linear)
        hidden_states = self.dropout(hidden_states)
        hidden_states = to(hidden_states, self.wo.weight.dtype)
        projected: Tensor = self.wo(hidden_states)
        del hidden_gelu, hidden_linear  # held until here
        return projected


class LayerFF(Module):
    """T5LayerFF."""

    def __init__(self, sizes: FeedForwardSizes) -> None:
        dense = DenseGatedActDense if sizes.is_gated else DenseActDense
        self.DenseReluDense = dense(sizes)
        self.layer_norm = Norm(sizes.hidden_size)
        self.dropout = Dropout(sizes.dropout)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        forwarded_states = self.layer_norm(hidden_states)
        forwarded_states = self.DenseReluDense(forwarded_states)
        return add(hidden_states, self.dropout(forwarded_states))


def clamp_bound(hidden_states: Tensor) -> Tensor | None:
    """Return the largest number that float16 states may have: less where one is infinite."""
    if hidden_states.dtype is not float16:
        return None
    return choose_number(any_infinite(hidden_states))


def clamped(hidden_states: Tensor, bound: Tensor | None) -> Tensor:
    """Return the states between -bound and bound."""
    return hidden_states if bound is None else clamp(hidden_states, neg(bound), bound)
