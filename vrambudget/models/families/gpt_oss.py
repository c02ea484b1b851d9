"""GPT-OSS as transformers writes it (models/gpt_oss/modeling_gpt_oss.py): gpt-oss-20b, -120b.

Attention with a sink, a learned score beside each row's that takes probability and gives nothing:
only by single operations, for no kernel of PyTorch's has one. Layers with a window and without one
alternate; experts have biases, and their gate and up projections lie in pairs.

Not modelled: weights in mxfp4 (they are dequantised to 16 bit where there are no kernels for them,
as in training); norms in float32 of weights loaded in float16; kernels of the hub.
"""

from collections.abc import Iterable
from typing import Any, Literal

from vrambudget.config.settings import Size
from vrambudget.dtypes import DType, float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context, no_grad
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts.attention import Attended, repeat_kv
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.decoder import LayerType, Model
from vrambudget.models.parts.decoder_layers import Attention, DecoderLayer, RMSNorm, attended
from vrambudget.models.parts.experts import Chosen, Experts, weights_of
from vrambudget.models.parts.moe import MoeConfig, Router
from vrambudget.models.parts.parametrised import Parametrised
from vrambudget.models.parts.rotary import Rotary, RotaryEmbedding, scaled_table
from vrambudget.models.parts.windows import MostLayersSlide
from vrambudget.ops.clamp import clamp_to_numbers
from vrambudget.ops.creation import made
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import (
    add,
    add_scalar,
    mul,
    mul_scalar,
    pow_scalar,
    rsqrt,
    sigmoid,
    sub,
)
from vrambudget.ops.linear import linear, matmul
from vrambudget.ops.ordering import max_last, topk
from vrambudget.ops.reduce import mean_last
from vrambudget.ops.shape import (
    cat,
    contiguous,
    expand,
    reshape,
    select,
    slice_last,
    slice_step,
    split,
    transpose,
    unsqueeze,
)
from vrambudget.ops.softmax import softmax
from vrambudget.ops.workspaces import bmm_workspace


class GptOssRMSNorm(RMSNorm):
    """GptOssRMSNorm: the last product in float32 too."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        input_dtype = hidden_states.dtype
        hidden_states = to(hidden_states, float32)
        variance = mean_last(pow_scalar(hidden_states))
        hidden_states = mul(hidden_states, rsqrt(add_scalar(variance)))
        return to(mul(self.weight, hidden_states), input_dtype)


class GptOssExperts(Experts):
    """GptOssExperts: weights [E, C, 2 I] and [E, I, C], with biases; gate and up lie in pairs."""

    is_transposed = True
    has_bias = True

    def __init__(self, experts: int, width: int, inner: int) -> None:
        Parametrised.__init__(self)
        dtype = context.options.dtype
        self.gate_up_proj = Parameter((experts, width, 2 * inner), dtype)
        self.gate_up_proj_bias = Parameter((experts, 2 * inner), dtype)
        self.down_proj = Parameter((experts, inner, width), dtype)
        self.down_proj_bias = Parameter((experts, width), dtype)

    def apply_gate(self, gate_up_out: Tensor) -> Tensor:
        """[S, 2 I] -> [S, I]."""
        gate, up = slice_step(gate_up_out, 2), slice_step(gate_up_out, 2)
        gate = clamp_to_numbers(gate, both=False)
        up = clamp_to_numbers(up, both=True)
        glu = mul(gate, sigmoid(mul_scalar(gate)))
        return mul(add_scalar(up), glu)

    def one_expert(self, frame: dict[str, Tensor], current_state: Tensor, chosen: Chosen) -> Tensor:
        """Return one expert's rows [n, C], weighed; `frame`: the loop's variables."""
        frame["gate_up"] = self._projected(current_state, "gate_up_proj")
        frame["gated_output"] = self.apply_gate(frame["gate_up"])
        frame["out"] = self._projected(frame["gated_output"], "down_proj")
        frame["weighted_output"] = mul(frame["out"], weights_of(*chosen))
        return frame["weighted_output"]

    def _projected(self, x: Tensor, name: str) -> Tensor:
        """X @ weight[expert] + bias[expert]."""
        weight = select(self.value(name), 0)
        return add(matmul(x, weight), select(self.value(f"{name}_bias"), 0))


class GptOssTopKRouter(Router):
    """GptOssTopKRouter: a softmax over the logits of the best."""

    def __init__(self, experts: int, width: int, top_k: int) -> None:
        super().__init__(experts, width, top_k)
        self.bias = Parameter((experts,), context.options.dtype)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, C] -> logits [N, E], weights [N, k], indices [N, k]."""
        router_logits = linear(hidden_states, self.value("weight"), self.bias)
        router_top_value, router_indices = topk(router_logits, self.top_k)
        router_scores = softmax(router_top_value, dtype=router_top_value.dtype)
        return router_logits, router_scores, router_indices


class GptOssMLP(Module):
    """GptOssMLP: experts, and the scores by which they were weighed."""

    def __init__(self, config: "GptOssConfig") -> None:
        experts, width = config.num_local_experts, config.hidden_size
        self.router = GptOssTopKRouter(experts, width, config.num_experts_per_tok)
        self.experts = GptOssExperts(experts, width, config.intermediate_size)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, C] -> [B, T, C], and scores [N, k]."""
        shape = hidden_states.shape
        hidden_states = reshape(hidden_states, -1, shape[-1])
        _, router_scores, router_indices = self.router(hidden_states)
        hidden_states = self.experts(hidden_states, router_indices, router_scores)
        return reshape(hidden_states, *shape), router_scores


class HalfRotaryEmbedding(RotaryEmbedding):
    """GptOssRotaryEmbedding: cos and sin [P, T, D / 2], for both halves of a head."""

    def forward(self, position_ids: Tensor, dtype: DType) -> Rotary:
        """Return cos and sin for positions [P, T]."""
        rows, length = position_ids.shape
        with no_grad():
            self._update()
            positions = made("to_dtype", (rows, 1, length), float32)
            freqs = made("bmm", (rows, length, self.dim // 2), float32)
            bmm_workspace(inner=1)
            cos, sin = scaled_table("cos", freqs), scaled_table("sin", freqs)
            result = to(cos, dtype), to(sin, dtype)
            del positions, freqs
            return result


class GptOssAttention(Attention):
    """GptOssAttention."""

    def __init__(self, config: "GptOssConfig") -> None:
        bias = config.attention_bias
        super().__init__(config, qkv_bias=bias, out_bias=bias)
        self.sinks = Parameter((config.num_attention_heads,), context.options.dtype)

    def rotate(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """apply_rotary_pos_emb."""
        cos, sin = (unsqueeze(table, 1) for table in rotary)
        q_embed = _rotated_halves(query, cos, sin)
        return q_embed, _rotated_halves(key, cos, sin)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Attended:
        """eager_attention_forward: [B, H, T, D], [B, Hkv, T, D] twice -> [B, T, H, D]."""
        groups = query.shape[1] // key.shape[1]
        key_states = repeat_kv(key, groups)
        value_states = repeat_kv(value, groups)
        attn_weights = mul_scalar(matmul(query, transpose(key_states, 2, 3)))
        if mask is not None:
            attn_weights = add(attn_weights, mask)
        B, H, T, _ = query.shape
        sinks = expand(reshape(self.sinks, 1, -1, 1, 1), B, H, T, 1)
        combined_logits = cat((attn_weights, sinks), dim=-1)
        combined_logits = sub(combined_logits, unsqueeze(max_last(combined_logits)[0], 3))
        probs = softmax(combined_logits, dtype=combined_logits.dtype)
        scores = slice_last(probs, probs.shape[-1] - 1)
        dropout_p = self.attention_dropout if self.training else 0.0
        attn_weights = to(dropout(scores, dropout_p), value_states.dtype)
        output = matmul(attn_weights, value_states)
        return contiguous(transpose(output, 1, 2)), attn_weights


def _rotated_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """_apply_rotary_emb."""
    first_half, second_half = split(x, x.shape[-1] // 2, dim=-1)
    first = sub(mul(first_half, cos), mul(second_half, sin))
    second = add(mul(second_half, cos), mul(first_half, sin))
    return cat((first, second), dim=-1)


class GptOssLayer(DecoderLayer):
    """GptOssDecoderLayer."""

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, **attended(given))
        hidden_states = add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states, _ = self.mlp(hidden_states)  # attention's weights go, scores stay
        return add(residual, hidden_states)


class GptOssModel(Model):
    """GptOssModel: its masks are made without positions, so no packed rows are looked for."""

    def mask(
        self,
        embeddings: Tensor,
        position_ids: Tensor | None,
        padding: Tensor | None,
        past: Cache | None,
        kind: LayerType,
    ) -> Tensor | None:
        """Return the mask of layers of this kind."""
        del position_ids
        return super().mask(embeddings, None, padding, past, kind)


class GptOssConfig(MostLayersSlide, MoeConfig):
    """transformers' GptOssConfig, with its defaults."""

    model_type: Literal["gpt_oss"] = "gpt_oss"
    vocab_size: Size = 201_088
    hidden_size: Size = 2880
    intermediate_size: Size = 2880
    num_hidden_layers: Size = 36
    num_attention_heads: Size = 64
    num_key_value_heads: Size | None = 8
    head_dim: Size | None = 64
    max_position_embeddings: Size = 131_072
    sliding_window: Size | None = 128
    num_local_experts: Size = 128
    num_experts_per_tok: Size = 4
    attention_bias: bool = True

    special_tokens = 1
    followed_in = ("5.17",)
    attentions = ("eager",)
    norm = GptOssRMSNorm
    full_every = 2
    makes_both_masks = True
    rotary_embedding = HalfRotaryEmbedding
    aliases = {  # noqa: RUF012 - ClassVar in the base class
        "num_experts": "num_local_experts",
    }
    ignored_keys = MoeConfig.ignored_keys | {
        *("swiglu_limit", "initial_context_length", "experts_per_token"),
        "quantization_config",  # notes say how weights are counted
    }

    def notes(self) -> Iterable[str]:
        """Yield how attention and weights are counted."""
        yield "gpt_oss attends by single operations (eager): PyTorch's kernels know no sinks"
        yield (
            "weights count in the job's type: those published in mxfp4 are dequantised to 16 bits"
            " for training, and wherever transformers has no kernels for them"
        )

    @property
    def experts(self) -> int:
        """How many experts a layer has."""
        return self.num_local_experts

    @property
    def rope(self) -> dict[str, Any]:
        """The parameters of rotary positions: yarn where a file has none."""
        return super().rope or {"rope_type": "yarn"}

    def layer(self) -> GptOssLayer:
        """GptOssDecoderLayer."""
        return GptOssLayer(self, GptOssAttention(self), GptOssMLP(self))

    def decoder(self) -> GptOssModel:
        """GptOssModel."""
        return GptOssModel(self)
