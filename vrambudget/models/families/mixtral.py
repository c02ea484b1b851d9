"""Mixtral as transformers writes it (models/mixtral/modeling_mixtral.py): Mixtral 8x7B, 8x22B.

Mistral with experts in place of the MLP.

Not modelled: RoPE scaling (it changes values, not sizes).
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from vrambudget.config.settings import Field, Size
from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor, empty_like
from vrambudget.models.parts.decoder_layers import Attention, DecoderLayer
from vrambudget.models.parts.moe import MoeConfig, Router
from vrambudget.ops.fill import div_, mul_
from vrambudget.ops.linear import linear
from vrambudget.ops.ordering import topk
from vrambudget.ops.reduce import sum_dim
from vrambudget.ops.shape import reshape, view
from vrambudget.ops.softmax import softmax


class TopKRouter(Router):
    """MixtralTopKRouter: weights in float32 that add up to 1."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, C] -> logits [N, E], weights [N, k], indices [N, k]."""
        hidden_states = reshape(hidden_states, -1, hidden_states.shape[-1])
        router_logits = linear(hidden_states, self.value("weight"))
        router_probs = softmax(to(router_logits, float32))
        router_top_value, router_indices = topk(router_probs, self.top_k)
        router_top_value = div_(router_top_value, sum_dim(router_top_value, -1, keepdim=True))
        return router_logits, router_top_value, router_indices


class SparseMoeBlock(Module):
    """MixtralSparseMoeBlock."""

    def __init__(self, config: "MixtralConfig") -> None:
        self.jitter_noise = config.router_jitter_noise
        self.gate = TopKRouter(config.experts, config.hidden_size, config.num_experts_per_tok)
        self.experts = config.make_experts(config.intermediate_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        shape = hidden_states.shape
        if self.training and self.jitter_noise > 0:
            hidden_states = mul_(hidden_states, empty_like(hidden_states))
        hidden_states = view(hidden_states, -1, shape[-1])
        _, top_k_weights, top_k_index = self.gate(hidden_states)
        hidden_states = self.experts(hidden_states, top_k_index, top_k_weights)
        return reshape(hidden_states, *shape)


class MixtralConfig(MoeConfig):
    """transformers' MixtralConfig, with its defaults."""

    model_type: Literal["mixtral"] = "mixtral"
    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: Size = 14336
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = 8
    max_position_embeddings: Size = 131072
    num_local_experts: Size = 8
    num_experts_per_tok: Size = 2
    router_jitter_noise: Annotated[float, Field(ge=0)] = 0.0

    followed_in = ("5.17",)
    aliases: ClassVar[Mapping[str, str]] = {"num_experts": "num_local_experts"}

    @property
    def experts(self) -> int:
        """How many experts a layer has."""
        return self.num_local_experts

    def layer(self) -> DecoderLayer:
        """MixtralDecoderLayer."""
        attention = Attention(self, qkv_bias=False, out_bias=False)
        return DecoderLayer(self, attention, SparseMoeBlock(self))
