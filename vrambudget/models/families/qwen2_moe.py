"""Qwen2 with experts as transformers writes it (models/qwen2_moe/modeling_qwen2_moe.py).

Qwen1.5-MoE, Qwen2-57B-A14B: Qwen2's attention; next to the experts a shared one that every token
goes through, times a gate.

Not modelled: `use_sliding_window`.
"""

from typing import Annotated, Literal

from vrambudget.config.settings import Field, Size
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.families.qwen3_moe import Layers, TopKRouter
from vrambudget.models.parts.decoder import LayerType
from vrambudget.models.parts.decoder_layers import MLP, Attention, DecoderLayer
from vrambudget.models.parts.layers import CheckpointedLayer, Linear
from vrambudget.models.parts.moe import MoeConfig
from vrambudget.ops.elementwise import add, mul, sigmoid
from vrambudget.ops.shape import reshape, view


class SparseMoeBlock(Module):
    """Qwen2MoeSparseMoeBlock."""

    def __init__(self, config: "Qwen2MoeConfig") -> None:
        width = config.hidden_size
        self.gate = TopKRouter(
            config.num_experts, width, config.num_experts_per_tok, normed=config.norm_topk_prob
        )
        self.experts = config.make_experts(config.moe_intermediate_size)
        self.shared_expert = MLP(config, inner=config.shared_expert_intermediate_size)
        self.shared_expert_gate = Linear(width, 1, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        hidden_states_reshaped = view(hidden_states, -1, hidden_states.shape[-1])
        shared_expert_output = self.shared_expert(hidden_states_reshaped)
        _, routing_weights, selected_experts = self.gate(hidden_states_reshaped)
        expert_output = self.experts(hidden_states_reshaped, selected_experts, routing_weights)
        shared_expert_output = mul(
            sigmoid(self.shared_expert_gate(hidden_states_reshaped)), shared_expert_output
        )
        expert_output = add(expert_output, shared_expert_output)
        return reshape(expert_output, *hidden_states.shape)


class Qwen2MoeConfig(MoeConfig):
    """transformers' Qwen2MoeConfig, with its defaults."""

    model_type: Literal["qwen2_moe"] = "qwen2_moe"
    vocab_size: Size = 151936
    hidden_size: Size = 2048
    intermediate_size: Size = 5632
    num_hidden_layers: Size = 24
    num_attention_heads: Size = 16
    num_key_value_heads: Size | None = 16
    max_position_embeddings: Size = 32768
    use_sliding_window: Literal[False] = False
    sliding_window: Annotated[int, Field(ge=0)] | None = 4096  # 0 once transformers has read it
    decoder_sparse_step: Size = 1
    moe_intermediate_size: Size = 1408
    shared_expert_intermediate_size: Size = 5632
    num_experts: Size = 60
    num_experts_per_tok: Size = 4
    norm_topk_prob: bool = False
    mlp_only_layers: Layers | None = None
    qkv_bias: bool = True

    special_tokens = 1
    followed_in = ("5.17",)
    ignored_keys = MoeConfig.ignored_keys | {"max_window_layers", "layer_types"}

    @property
    def experts(self) -> int:
        """How many experts a layer has."""
        return self.num_experts

    @property
    def window(self) -> int:
        """No layer slides, and yet there is a mask for those that do: of no width."""
        return 0

    @property
    def layer_kinds(self) -> list[LayerType]:
        """What each layer attends to: everything."""
        return ["full_attention"] * self.num_hidden_layers

    @property
    def mask_kinds(self) -> list[LayerType]:
        """Both, whatever the layers need."""
        return ["full_attention", "sliding_attention"]

    def make_layers(self) -> list[CheckpointedLayer]:
        """Return all layers, their weights allocated."""
        return [self._layer(index) for index in range(self.num_hidden_layers)]

    def _layer(self, index: int) -> DecoderLayer:
        """Qwen2MoeDecoderLayer."""
        is_dense = index in (self.mlp_only_layers or ())
        is_sparse = not is_dense and (index + 1) % self.decoder_sparse_step == 0
        attention = Attention(self, qkv_bias=self.qkv_bias, out_bias=False)
        return DecoderLayer(self, attention, SparseMoeBlock(self) if is_sparse else MLP(self))
