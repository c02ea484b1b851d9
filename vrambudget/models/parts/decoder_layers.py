"""The parts of transformers' decoder layers, most of them copies of Llama's code.

    RMSNorm        weight [C]; all but the last product in float32
    Attention      projections for q, k, v with fewer key-value heads, rotary positions
    MLP            down(act(gate(x)) * up(x))
    DecoderLayer   x + attention(norm(x)), then x + mlp(norm(x))

A family overrides what its own code does otherwise (`Attention.project`, `rotate`, `attend`).

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
from vrambudget.models.parts.attention import Attended, attend
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.layers import CheckpointedLayer, Embedding, Linear
from vrambudget.models.parts.rotary import Rotary, rotate
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import ACTIVATIONS, add, add_scalar, mul, pow_scalar, rsqrt
from vrambudget.ops.reduce import mean_last
from vrambudget.ops.shape import contiguous, reshape, transpose, view
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


class Attention(Module):
    """LlamaAttention."""

    layer_idx = 0

    def __init__(self, config: "DecoderConfig", *, qkv_bias: bool, out_bias: bool) -> None:
        self.head_dim = config.head_width
        self.attention_dropout = config.attention_dropout
        width, heads = config.hidden_size, config.num_attention_heads
        self.q_proj = Linear(width, heads * self.head_dim, bias=qkv_bias)
        self.k_proj = Linear(width, config.kv_heads * self.head_dim, bias=qkv_bias)
        self.v_proj = Linear(width, config.kv_heads * self.head_dim, bias=qkv_bias)
        self.o_proj = Linear(heads * self.head_dim, width, bias=out_bias)

    def forward(
        self,
        hidden_states: Tensor,
        rotary: Rotary,
        mask: Tensor | None,
        past_key_values: Cache | None = None,
    ) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        query, key, value = self.project(hidden_states)
        query, key = self.rotate(query, key, rotary)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        output, weights = self.attend(query, key, value, mask)
        output = contiguous(reshape(output, *output.shape[:2], -1))
        return self.o_proj(output), weights

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, C] -> [B, H, T, D], [B, Hkv, T, D] twice; each is viewed once it is there.

        Backward undoes views in their order, and a transposed gradient's takes a copy: a family
        that projects all three first overrides this.
        """
        query = self.heads(self.q_proj(hidden_states))
        key = self.heads(self.k_proj(hidden_states))
        return query, key, self.heads(self.v_proj(hidden_states))

    def rotate(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Rotate [B, H, T, D] and [B, Hkv, T, D]."""
        return rotate(query, key, *rotary)

    def heads(self, x: Tensor) -> Tensor:
        """[B, T, H * D] -> [B, H, T, D]."""
        return transpose(view(x, *x.shape[:2], -1, self.head_dim), 1, 2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Attended:
        """[B, H, T, D], [B, Hkv, T, D] twice -> [B, T, H, D] and the weights."""
        dropout_p = self.attention_dropout if self.training else 0.0
        return attend(query, key, value, mask, dropout_p=dropout_p)


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
