"""DeepSeek V2 as transformers writes it (models/deepseek_v2/modeling_deepseek_v2.py): V2, V2-Lite.

Latent attention whose rotary positions are products of complex numbers, and experts that a softmax
weighs; with `group_limited_greedy` only those of the best groups.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from vrambudget.config.model_config import divides
from vrambudget.config.settings import Field, Size
from vrambudget.dtypes import DType, complex64, float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import no_grad
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.decoder_layers import MLP
from vrambudget.models.parts.latent import LatentAttention, LatentConfig, inverted
from vrambudget.models.parts.moe import Router
from vrambudget.models.parts.rotary import RotaryEmbedding
from vrambudget.ops.complex_numbers import rotated_by, view_as_complex, view_as_real
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.ops.fill import masked_fill
from vrambudget.ops.linear import linear
from vrambudget.ops.ordering import max_last, topk
from vrambudget.ops.shape import reshape, unsqueeze, view
from vrambudget.ops.softmax import softmax
from vrambudget.ops.workspaces import bmm_workspace


class DeepseekV2TopkRouter(Router):
    """DeepseekV2TopkRouter: the best experts, of all or of the best groups."""

    def __init__(self, config: "DeepseekV2Config") -> None:
        super().__init__(config.n_routed_experts, config.hidden_size, config.num_experts_per_tok)
        self.has_groups = config.topk_method == "group_limited_greedy"
        self.num_group, self.topk_group = config.n_group or 1, config.topk_group or 1

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, C] -> logits [N, E], weights [N, k], indices [N, k]."""
        hidden_states = view(hidden_states, -1, hidden_states.shape[-1])
        router_logits = linear(to(hidden_states, float32), to(self.value("weight"), float32))
        scores = softmax(router_logits, dtype=float32)
        held = None
        if self.has_groups:
            scores, held = self._of_best_groups(scores)
        topk_weights, topk_indices = topk(scores, self.top_k)
        topk_weights = mul_scalar(topk_weights)
        del held
        return router_logits, topk_weights, topk_indices

    def _of_best_groups(self, scores: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return scores [N, E] with zeros outside the best groups, and the frame's variables."""
        N, E = scores.shape
        by_group = view(scores, -1, self.num_group, E // self.num_group)
        group_scores = max_last(by_group)[0]
        group_idx = topk(group_scores, self.topk_group)[1]
        group_mask = made("zeros_like", group_scores.shape, group_scores.dtype)
        score_mask = made("reshape", (N, E), group_mask.dtype)
        scores = masked_fill(scores, inverted(score_mask))
        return scores, (group_scores, group_idx, group_mask, score_mask)


class ComplexRotaryEmbedding(RotaryEmbedding):
    """DeepseekV2RotaryEmbedding: a table of complex numbers [P, T, Dr / 2]."""

    def forward(self, position_ids: Tensor, dtype: DType) -> Tensor:  # type: ignore[override]
        """Return the table for positions [P, T]; it has no dtype but its own."""
        del dtype
        rows, length = position_ids.shape
        shape = (rows, length, self.dim // 2)
        with no_grad():
            self._update()
            positions = made("to_dtype", (rows, 1, length), float32)
            freqs = made("bmm", (rows, self.dim // 2, length), float32)
            bmm_workspace(inner=1)
            ones = made("ones_like", shape, float32)
            freqs_cis = made("polar", shape, complex64)
            del ones
            freqs_cis = made("mul", shape, complex64)
            del positions, freqs
            return freqs_cis


class DeepseekV2Attention(LatentAttention):
    """DeepseekV2Attention."""

    def rotate(self, query: Tensor, key: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """apply_rotary_emb of [B, H, T, Dr] and [B, 1, T, Dr] by a table [P, T, Dr / 2]."""
        xq_ = view_as_complex(reshape(to(query, float32), *query.shape[:-1], -1, 2))
        xk_ = view_as_complex(reshape(to(key, float32), *key.shape[:-1], -1, 2))
        freqs_cis = unsqueeze(rotary, 1)
        xq_out = to(reshape(view_as_real(rotated_by(xq_, freqs_cis)), *query.shape), query.dtype)
        xk_out = to(reshape(view_as_real(rotated_by(xk_, freqs_cis)), *key.shape), key.dtype)
        return xq_out, xk_out


class DeepseekV2Config(LatentConfig):
    """transformers' DeepseekV2Config, with its defaults."""

    model_type: Literal["deepseek_v2"] = "deepseek_v2"
    vocab_size: Size = 102_400
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    moe_intermediate_size: Size = 1407
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    n_shared_experts: Size = 2
    n_routed_experts: Size = 64
    n_group: Size | None = None
    topk_group: Size | None = None
    topk_method: Literal["greedy", "group_limited_greedy"] = "greedy"
    num_experts_per_tok: Size
    first_k_dense_replace: Annotated[int, Field(ge=0)] = 0
    mlp_bias: bool = False
    max_position_embeddings: Size = 2048

    checked_with = ("5.17",)
    rotary_embedding = ComplexRotaryEmbedding
    ignored_keys = LatentConfig.ignored_keys | {"norm_topk_prob", "moe_layer_freq"}

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        yield from divides(self, "num_attention_heads", into="hidden_size")
        if self.topk_method == "group_limited_greedy":
            if self.n_group is None or self.topk_group is None:
                yield "topk_method is group_limited_greedy, which needs n_group and topk_group"
            else:
                yield from divides(self, "n_group", into="n_routed_experts")

    def router(self) -> Module:
        """DeepseekV2TopkRouter."""
        return DeepseekV2TopkRouter(self)

    def attention(self) -> LatentAttention:
        """DeepseekV2Attention."""
        return DeepseekV2Attention(self)

    def mlp(self, inner: int) -> MLP:
        """DeepseekV2MLP."""
        return MLP(self, bias=self.mlp_bias, inner=inner)
