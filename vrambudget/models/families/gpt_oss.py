"""What stands in and around GPT-OSS's recorded layers (models/gpt_oss/modeling_gpt_oss.py).

Attention with a sink, a learned score beside each row's that takes probability and gives nothing:
only by single operations, for no kernel of PyTorch's has one. Layers with a window and without one
alternate; experts have biases, and their gate and up projections lie in pairs.

Not modelled: weights in mxfp4 (they are dequantised to 16 bit where there are no kernels for them,
as in training); norms in float32 of weights loaded in float16; kernels of the hub.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from vrambudget.dtypes import DType, float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import no_grad
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended, EagerAttention, repeat_kv
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.decoder import DecoderConfig, LayerType, Model
from vrambudget.models.parts.experts import Chosen, Experts, weights_of
from vrambudget.models.parts.rotary import Rotary, RotaryEmbedding, scaled_table
from vrambudget.ops.clamp import clamp_to_numbers
from vrambudget.ops.creation import made
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import (
    add,
    add_scalar,
    mul,
    mul_scalar,
    sigmoid,
    sub,
)
from vrambudget.ops.linear import matmul
from vrambudget.ops.ordering import max_last
from vrambudget.ops.shape import (
    cat,
    contiguous,
    expand,
    reshape,
    select,
    slice_last,
    slice_step,
    transpose,
    unsqueeze,
)
from vrambudget.ops.softmax import softmax
from vrambudget.ops.workspaces import bmm_workspace


class GptOssExperts(Experts):
    """GptOssExperts: weights [E, C, 2 I] and [E, I, C], with biases; gate and up lie in pairs."""

    is_transposed = True
    has_bias = True

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


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout_p: float,
    layer: Any,
) -> Attended:
    """eager_attention_forward: [B, H, T, D], [B, Hkv, T, D] twice -> [B, T, H, D]."""
    groups = query.shape[1] // key.shape[1]
    key_states = repeat_kv(key, groups)
    value_states = repeat_kv(value, groups)
    attn_weights = mul_scalar(matmul(query, transpose(key_states, 2, 3)))
    if mask is not None:
        attn_weights = add(attn_weights, mask)
    B, H, T, _ = query.shape
    sinks = expand(reshape(layer.self_attn(), 1, -1, 1, 1), B, H, T, 1)
    combined_logits = cat((attn_weights, sinks), dim=-1)
    combined_logits = sub(combined_logits, unsqueeze(max_last(combined_logits)[0], 3))
    probs = softmax(combined_logits, dtype=combined_logits.dtype)
    scores = slice_last(probs, probs.shape[-1] - 1)
    attn_weights = to(dropout(scores, dropout_p), value_states.dtype)
    output = matmul(attn_weights, value_states)
    return contiguous(transpose(output, 1, 2)), attn_weights


class Sinks(Module):
    """GptOssAttention as far as hooks see it: a score of each head [H]."""

    sinks: Tensor

    def forward(self) -> Tensor:
        """Return the sinks: what gathers them acts on a call."""
        return self.sinks


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


class GptOssConfig(DecoderConfig):
    """What GPT-OSS's configuration has besides its keys."""

    attentions = ("eager",)
    ignored_keys = DecoderConfig.ignored_keys | {"quantization_config"}  # notes say how it counts
    experts_class = GptOssExperts
    rotary_embedding = HalfRotaryEmbedding

    def notes(self) -> Iterable[str]:
        """Yield how attention and weights are counted."""
        yield "gpt_oss attends by single operations (eager): PyTorch's kernels know no sinks"
        yield (
            "weights count in the job's type: those published in mxfp4 are dequantised to 16 bits"
            " for training, and wherever transformers has no kernels for them"
        )

    @property
    def rope(self) -> dict[str, Any]:
        """The parameters of rotary positions: yarn where a file has none."""
        return super().rope or {"rope_type": "yarn"}

    def inner(self, path: str) -> Module:
        """Return a layer's module that has modules."""
        return Sinks() if path == "self_attn" else super().inner(path)

    def eager(self, layer: Module) -> EagerAttention:
        """Return how a layer attends."""
        return partial(eager_attention, layer=layer)

    def decoder(self) -> GptOssModel:
        """Return the model that heads stand on, its weights allocated."""
        return GptOssModel(self)
