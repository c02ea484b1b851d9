"""Qwen3 with experts as transformers writes it (models/qwen3_moe/modeling_qwen3_moe.py).

An RMSNorm over each head of q and k; every `decoder_sparse_step`-th layer has experts, but not
`mlp_only_layers`.

Not modelled: RoPE scaling (it changes values, not sizes).
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from vrambudget.config.settings import Size
from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.decoder import DecoderConfig, LayerType
from vrambudget.models.parts.decoder_layers import MLP, Attention, DecoderLayer, RMSNorm
from vrambudget.models.parts.layers import CheckpointedLayer
from vrambudget.models.parts.moe import MoeConfig, Router
from vrambudget.ops.fill import div_
from vrambudget.ops.linear import linear
from vrambudget.ops.ordering import topk
from vrambudget.ops.reduce import sum_dim
from vrambudget.ops.shape import reshape, transpose, view
from vrambudget.ops.softmax import softmax

Layers = tuple[int, ...]


class NormedAttention(Attention):
    """Qwen3MoeAttention."""

    def __init__(self, config: DecoderConfig, *, bias: bool) -> None:
        super().__init__(config, qkv_bias=bias, out_bias=bias)
        self.q_norm = RMSNorm(self.head_dim)
        self.k_norm = RMSNorm(self.head_dim)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, C] -> [B, H, T, D], [B, Hkv, T, D] twice."""
        query = transpose(self.q_norm(self._by_head(self.q_proj(hidden_states))), 1, 2)
        key = transpose(self.k_norm(self._by_head(self.k_proj(hidden_states))), 1, 2)
        return query, key, self.heads(self.v_proj(hidden_states))

    def _by_head(self, x: Tensor) -> Tensor:
        """[B, T, H * D] -> [B, T, H, D]."""
        return view(x, *x.shape[:2], -1, self.head_dim)


class TopKRouter(Router):
    """Qwen3MoeTopKRouter: weights in the logits' type, made to add up to 1 if asked for."""

    def __init__(self, experts: int, width: int, top_k: int, *, normed: bool) -> None:
        super().__init__(experts, width, top_k)
        self.norm_topk_prob = normed

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, C] -> logits [N, E], weights [N, k], indices [N, k]."""
        hidden_states = reshape(hidden_states, -1, hidden_states.shape[-1])
        router_logits = linear(hidden_states, self.value("weight"))
        router_probs = softmax(router_logits, dtype=float32)
        router_top_value, router_indices = topk(router_probs, self.top_k)
        if self.norm_topk_prob:
            router_top_value = div_(router_top_value, sum_dim(router_top_value, -1, keepdim=True))
        router_top_value = to(router_top_value, router_logits.dtype)
        return router_logits, router_top_value, router_indices


class SparseMoeBlock(Module):
    """Qwen3MoeSparseMoeBlock."""

    def __init__(self, config: "Qwen3MoeConfig") -> None:
        self.experts = config.make_experts(config.moe_intermediate_size)
        self.gate = TopKRouter(
            config.num_experts,
            config.hidden_size,
            config.num_experts_per_tok,
            normed=config.norm_topk_prob,
        )

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        hidden_states_reshaped = view(hidden_states, -1, hidden_states.shape[-1])
        _, routing_weights, selected_experts = self.gate(hidden_states_reshaped)
        final_hidden_states = self.experts(
            hidden_states_reshaped, selected_experts, routing_weights
        )
        return reshape(final_hidden_states, *hidden_states.shape)


class Qwen3MoeConfig(MoeConfig):
    """transformers' Qwen3MoeConfig, with its defaults."""

    model_type: Literal["qwen3_moe"] = "qwen3_moe"
    vocab_size: Size = 151936
    hidden_size: Size = 2048
    intermediate_size: Size = 6144
    num_hidden_layers: Size = 24
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 4
    max_position_embeddings: Size = 32768
    attention_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: Size | None = 4096
    decoder_sparse_step: Size = 1
    moe_intermediate_size: Size = 768
    num_experts: Size = 128
    num_experts_per_tok: Size = 8
    norm_topk_prob: bool = False
    mlp_only_layers: Layers | None = None

    special_tokens = 1
    followed_in = ("5.17",)
    aliases: ClassVar[Mapping[str, str]] = {"num_local_experts": "num_experts"}
    ignored_keys = MoeConfig.ignored_keys | {"max_window_layers"}

    @property
    def experts(self) -> int:
        """How many experts a layer has."""
        return self.num_experts

    @property
    def mask_kinds(self) -> list[LayerType]:
        """The one mask that a forward pass makes."""
        return super().mask_kinds if self.use_sliding_window else ["full_attention"]

    def make_layers(self) -> list[CheckpointedLayer]:
        """Return all layers, their weights allocated."""
        return [self._layer(index) for index in range(self.num_hidden_layers)]

    def _layer(self, index: int) -> DecoderLayer:
        """Qwen3MoeDecoderLayer."""
        is_dense = index in (self.mlp_only_layers or ())
        is_sparse = not is_dense and (index + 1) % self.decoder_sparse_step == 0
        attention = NormedAttention(self, bias=self.attention_bias)
        mlp = SparseMoeBlock(self) if is_sparse else MLP(self)
        return DecoderLayer(self, attention, mlp)
