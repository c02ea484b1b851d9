"""DeepSeek V3 as transformers writes it (models/deepseek_v3/modeling_deepseek_v3.py).

DeepSeek-V3 and R1, Kimi K2, Moonlight: latent attention; after some dense layers, experts in groups
of which a token's best are chosen, with a bias that balances them.

Not modelled: the heads for multi-token prediction, which transformers does not build; weights in
float8 (`quantization_config`): transformers dequantises them where it has no kernels for them.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from vrambudget.config.model_config import divides
from vrambudget.config.settings import Field, Size
from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.latent import LatentAttention, LatentConfig, inverted
from vrambudget.models.parts.moe import Router
from vrambudget.models.parts.rotary import Rotary
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import add, add_scalar, mul, mul_scalar, sigmoid, sub
from vrambudget.ops.fill import div_, masked_fill
from vrambudget.ops.indexing import gather
from vrambudget.ops.linear import linear
from vrambudget.ops.ordering import topk
from vrambudget.ops.reduce import sum_dim
from vrambudget.ops.shape import cat, narrowed, slice_step, unsqueeze, view


class DeepseekV3TopkRouter(Router):
    """DeepseekV3TopkRouter: the best experts of the best groups, weighed by sigmoids."""

    def __init__(self, config: "DeepseekV3Config") -> None:
        super().__init__(config.n_routed_experts, config.hidden_size, config.num_experts_per_tok)
        self.num_group, self.topk_group = config.n_group, config.topk_group
        self.norm_topk_prob = config.norm_topk_prob
        shape = (config.n_routed_experts,)
        self.e_score_correction_bias = made("zeros", shape, context.options.dtype)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, C] -> logits [N, E], weights [N, k], indices [N, k]."""
        hidden_states = view(hidden_states, -1, hidden_states.shape[-1])
        router_logits = linear(to(hidden_states, float32), to(self.value("weight"), float32))
        scores = sigmoid(router_logits)
        scores_for_choice = add(scores, self.e_score_correction_bias)
        N, E = scores.shape
        group_scores = view(scores_for_choice, -1, self.num_group, E // self.num_group)
        group_scores = sum_dim(topk(group_scores, 2)[0], -1)
        group_idx = topk(group_scores, self.topk_group)[1]
        group_mask = made("zeros_like", group_scores.shape, group_scores.dtype)
        score_mask = made("reshape", (N, E), group_mask.dtype)
        scores_for_choice = masked_fill(scores_for_choice, inverted(score_mask))
        topk_indices = topk(scores_for_choice, self.top_k)[1]
        topk_weights = gather(scores, topk_indices)
        denominator = None
        if self.norm_topk_prob:
            denominator = add_scalar(sum_dim(topk_weights, -1, keepdim=True))
            topk_weights = div_(topk_weights, denominator)
        topk_weights = mul_scalar(topk_weights)
        del denominator, score_mask, group_mask, group_idx  # held until here
        return router_logits, topk_weights, topk_indices


class DeepseekV3Attention(LatentAttention):
    """DeepseekV3Attention with `rope_interleave`: what is rotated lies in pairs."""

    def rotate(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """apply_rotary_pos_emb_interleave of [B, H, T, Dr] and [B, 1, T, Dr]."""
        cos, sin = (unsqueeze(narrowed(x, 2, x.shape[2] // 2), 1) for x in rotary)
        q1, q2 = slice_step(query, 2), slice_step(query, 2)
        k1, k2 = slice_step(key, 2), slice_step(key, 2)
        q_embed = _rotated_pairs(q1, q2, cos, sin)
        return q_embed, _rotated_pairs(k1, k2, cos, sin)


def _rotated_pairs(x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first = sub(mul(x1, cos), mul(x2, sin))
    return cat((first, add(mul(x2, cos), mul(x1, sin))), dim=-1)


class DeepseekV3Config(LatentConfig):
    """transformers' DeepseekV3Config, with its defaults."""

    model_type: Literal["deepseek_v3"] = "deepseek_v3"
    vocab_size: Size = 129_280
    hidden_size: Size = 7168
    intermediate_size: Size = 18432
    moe_intermediate_size: Size = 2048
    num_hidden_layers: Size = 61
    num_attention_heads: Size = 128
    num_key_value_heads: Size | None = 128
    n_shared_experts: Size = 1
    n_routed_experts: Size = 256
    n_group: Size = 8
    topk_group: Size = 4
    num_experts_per_tok: Size = 8
    first_k_dense_replace: Annotated[int, Field(ge=0)] = 3
    norm_topk_prob: bool = True
    max_position_embeddings: Size = 4096
    rope_interleave: bool = True

    checked_with = ("5.17",)
    ignored_keys = LatentConfig.ignored_keys | {
        *("topk_method", "moe_layer_freq"),
        "quantization_config",  # notes say how weights are counted
    }

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        yield from divides(self, "n_group", into="n_routed_experts")
        if self.topk_group > self.n_group:
            yield f"topk_group is {self.topk_group}, but there are {self.n_group} groups"

    def router(self) -> DeepseekV3TopkRouter:
        """DeepseekV3TopkRouter."""
        return DeepseekV3TopkRouter(self)

    def attention(self) -> LatentAttention:
        """DeepseekV3Attention."""
        return DeepseekV3Attention(self) if self.rope_interleave else LatentAttention(self)
