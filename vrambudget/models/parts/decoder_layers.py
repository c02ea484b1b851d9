"""The parts of transformers' decoder layers, most of them copies of Llama's code.

    RMSNorm        weight [C]; all but the last product in float32
    MLP            down(act(gate(x)) * up(x))
    DecoderLayer   x + attention(norm(x)), then x + mlp(norm(x))

Source: models/llama/modeling_llama.py and its namesakes in transformers 5.17.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.layers import CheckpointedLayer, Embedding, Linear
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import ACTIVATIONS, add, add_scalar, mul, pow_scalar, rsqrt
from vrambudget.ops.reduce import mean_last
from vrambudget.tape.events import Purpose

if TYPE_CHECKING:
    from vrambudget.models.parts.decoder import DecoderConfig


class Norm(Module):
    """A norm of the last dimension: weight [C]."""

    def __init__(self, width: int) -> None:
        self.weight = Parameter((width,), context.options.dtype)


class RMSNorm(Norm):
    """LlamaRMSNorm: all but the last product in float32."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        input_dtype = hidden_states.dtype
        hidden_states = to(hidden_states, float32)
        variance = mean_last(pow_scalar(hidden_states))
        hidden_states = mul(hidden_states, rsqrt(add_scalar(variance)))
        return mul(self.weight, to(hidden_states, input_dtype))


class ScaledEmbedding(Embedding):
    """GemmaTextScaledWordEmbedding: the scale is a buffer of the weights' type.

    Before 5.4 the model itself scales, by a number, when masks and positions are made.
    """

    def __init__(self, rows: int, width: int) -> None:
        super().__init__(rows, width)
        self.model_scales = not transformers_since(5, 4)
        if self.model_scales:
            return
        with made_for(Purpose.WEIGHTS):
            self.embed_scale = made("tensor", (), context.options.dtype)

    def forward(self, indices: Tensor) -> Tensor:
        """[...] -> [..., C]."""
        inputs_embeds = super().forward(indices)
        if self.model_scales:
            return inputs_embeds
        return mul(inputs_embeds, to(self.embed_scale, self.weight.dtype))


class MLP(Module):
    """LlamaMLP: down(act(gate(x)) * up(x))."""

    def __init__(
        self, config: "DecoderConfig", *, bias: bool = False, inner: int | None = None
    ) -> None:
        width, inner = config.hidden_size, inner or config.intermediate_size
        self.gate_proj = Linear(width, inner, bias=bias)
        self.up_proj = Linear(width, inner, bias=bias)
        self.down_proj = Linear(inner, width, bias=bias)
        self.act_fn = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        y: Tensor = self.down_proj(mul(self.act_fn(self.gate_proj(x)), self.up_proj(x)))
        return y


class DecoderLayer(CheckpointedLayer):
    """LlamaDecoderLayer, of the parts that it is given."""

    def __init__(self, config: "DecoderConfig", self_attn: Module, mlp: Module) -> None:
        self.self_attn = self_attn
        self.mlp = mlp
        self.input_layernorm = config.norm(config.hidden_size)
        self.post_attention_layernorm = config.norm(config.hidden_size)

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, **attended(given))
        hidden_states = add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return add(residual, hidden_states)


def attended(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what attention reads of what a layer is given: not the positions.

    Those a checkpoint keeps.
    """
    return {name: given[name] for name in ("rotary", "mask", "past_key_values")}
