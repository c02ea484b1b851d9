"""Multi-head latent attention: DeepSeek V2, V3 and their kin (Kimi K2, Moonlight).

    latent     kv_a_proj_with_mqa [R + Dr, C]: what all heads' keys and values come from, and the
               one part of the keys that carries positions. Both are what a cache keeps
    keys       [B, H, T, Dn + Dr]: Dn from the latent by kv_b_proj, Dr the same for all heads
    values     [B, H, T, Dv], from the latent

Source: DeepseekV3Attention and its copy in deepseek_v2, transformers 5.17.
Not modelled: layers of multi-token prediction, which `generate` alone would build.
"""

from collections.abc import Iterator
from typing import Annotated

from vrambudget.config.settings import Field, Size
from vrambudget.dtypes import bool_
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended, attend
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.decoder_layers import MLP, DecoderLayer, RMSNorm
from vrambudget.models.parts.experts import Experts
from vrambudget.models.parts.layers import CheckpointedLayer, Linear
from vrambudget.models.parts.rotary import Rotary, rotate
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import add
from vrambudget.ops.shape import cat, contiguous, expand, reshape, split_sizes, transpose, view
from vrambudget.ops.written import copied_into


class LatentAttention(Module):
    """DeepseekV3Attention; families say how they rotate."""

    layer_idx = 0

    def __init__(self, config: "LatentConfig") -> None:
        bias, width, heads = config.attention_bias, config.hidden_size, config.num_attention_heads
        self.head_dim, self.rope_head_dim = config.query_width, config.qk_rope_head_dim
        self.nope_head_dim, self.v_head_dim = config.qk_nope_head_dim, config.v_head_dim
        self.kv_lora_rank, self.attention_dropout = config.kv_lora_rank, config.attention_dropout
        self.q_lora_rank, queries = config.q_lora_rank, heads * self.head_dim
        if self.q_lora_rank is None:
            self.q_proj = Linear(width, queries, bias=False)
        else:
            self.q_a_proj = Linear(width, self.q_lora_rank, bias=bias)
            self.q_a_layernorm = RMSNorm(self.q_lora_rank)
            self.q_b_proj = Linear(self.q_lora_rank, queries, bias=False)
        self.kv_a_proj_with_mqa = Linear(width, config.latent_width, bias=bias)
        self.kv_a_layernorm = RMSNorm(self.kv_lora_rank)
        keys_and_values = heads * (self.nope_head_dim + self.v_head_dim)
        self.kv_b_proj = Linear(self.kv_lora_rank, keys_and_values, bias=False)
        self.o_proj = Linear(heads * self.v_head_dim, width, bias=bias)

    def forward(
        self,
        hidden_states: Tensor,
        rotary: Rotary,
        mask: Tensor | None,
        past_key_values: Cache | None = None,
    ) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        B, T, _ = hidden_states.shape
        q_states = transpose(view(self._queries(hidden_states), B, T, -1, self.head_dim), 1, 2)
        q_pass, q_rot = split_sizes(q_states, (self.nope_head_dim, self.rope_head_dim), -1)
        compressed_kv = self.kv_a_proj_with_mqa(hidden_states)
        kv_nope, k_rot = split_sizes(compressed_kv, (self.kv_lora_rank, self.rope_head_dim), -1)
        kv_nope = self.kv_a_layernorm(kv_nope)
        kv_nope = view(kv_nope, B, 1, T, self.kv_lora_rank)
        k_rot = view(k_rot, B, 1, T, self.rope_head_dim)
        q_rot, k_rot = self.rotate(q_rot, k_rot, rotary)
        if past_key_values is not None:
            kv_nope, k_rot = past_key_values.update(kv_nope, k_rot, self.layer_idx)
        query_states = cat((q_pass, q_rot), dim=-1)
        key_states, value_states = self._expanded(kv_nope, k_rot)
        dropout_p = self.attention_dropout if self.training else 0.0
        attn_output, weights = attend(
            query_states, key_states, value_states, mask, dropout_p=dropout_p
        )
        attn_output = contiguous(reshape(attn_output, B, T, -1))
        attn_output = self.o_proj(attn_output)
        return attn_output, weights

    def rotate(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Rotate [B, H, T, D] and [B, Hkv, T, D]."""
        return rotate(query, key, *rotary)

    def _queries(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, H (Dn + Dr)]."""
        y: Tensor
        if self.q_lora_rank is None:
            y = self.q_proj(hidden_states)
        else:
            y = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        return y

    def _expanded(self, kv_nope: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
        """expand_kv: [B, 1, S, R], [B, 1, S, Dr] -> keys [B, H, S, Dn + Dr], values [.., Dv]."""
        B, _, S, _ = kv_nope.shape
        widths = self.nope_head_dim, self.v_head_dim
        kv_nope = transpose(view(self.kv_b_proj(kv_nope), B, S, -1, sum(widths)), 1, 2)
        k_nope, value_states = split_sizes(kv_nope, widths, -1)
        heads = k_nope.shape[1]
        k_rot = expand(k_rot, B, heads, S, self.rope_head_dim)
        key_states = made("new_empty", (B, heads, S, self.head_dim), kv_nope.dtype)
        key_states = copied_into(key_states, k_nope)
        key_states = copied_into(key_states, k_rot)
        return key_states, value_states


class SharedExpertsMoE(Module):
    """DeepseekV3MoE: experts that a router chooses, and those that every token goes through."""

    def __init__(self, config: "LatentConfig") -> None:
        inner = config.moe_intermediate_size
        self.experts = Experts(
            config.n_routed_experts, config.hidden_size, inner, config.hidden_act
        )
        self.gate = config.router()
        self.shared_experts = config.mlp(inner * config.n_shared_experts)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        residuals = hidden_states
        shape = hidden_states.shape
        _, topk_weights, topk_indices = self.gate(hidden_states)
        hidden_states = view(hidden_states, -1, shape[-1])
        hidden_states = view(self.experts(hidden_states, topk_indices, topk_weights), *shape)
        return add(hidden_states, self.shared_experts(residuals))


def inverted(mask: Tensor) -> Tensor:
    """Return ~mask.bool()."""
    as_bool = made("to_dtype", mask.shape, bool_)
    inverted = made("bitwise_not", mask.shape, bool_)
    del as_bool
    return inverted


class LatentConfig(DecoderConfig):
    """The keys that decide latent attention and shared experts; families have their defaults."""

    attention_bias: bool = False
    q_lora_rank: Size | None = 1536
    kv_lora_rank: Size = 512
    qk_nope_head_dim: Size = 128
    qk_rope_head_dim: Size = 64
    v_head_dim: Size = 128
    n_routed_experts: Size
    n_shared_experts: Size
    num_experts_per_tok: Size
    moe_intermediate_size: Size
    first_k_dense_replace: Annotated[int, Field(ge=0)]
    n_group: Size | None = None
    topk_group: Size | None = None

    has_experts = True
    loads_in_4bit = False  # experts are no linear layers: bitsandbytes leaves them as they are
    ignored_keys = DecoderConfig.ignored_keys | {
        *("routed_scaling_factor", "scoring_func", "aux_loss_alpha", "seq_aux", "ep_size"),
        *("num_nextn_predict_layers", "num_mtp_layers", "qk_head_dim"),
    }

    @property
    def query_width(self) -> int:
        """Elements of a head of queries and keys."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def rotary_width(self) -> int:
        """How many of a head's elements carry positions."""
        return self.qk_rope_head_dim

    @property
    def latent_width(self) -> int:
        """Elements of a token in each layer's cache."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.kv_heads != self.num_attention_heads:
            yield (
                f"num_key_value_heads is {self.kv_heads}; latent attention has as many as"
                f" num_attention_heads = {self.num_attention_heads}"
            )
        if self.num_experts_per_tok > self.n_routed_experts:
            yield (
                f"num_experts_per_tok is {self.num_experts_per_tok},"
                f" but there are {self.n_routed_experts} experts"
            )

    def router(self) -> Module:
        """Return what chooses experts, its weights allocated."""
        raise NotImplementedError

    def attention(self) -> LatentAttention:
        """Return a layer's attention, its weights allocated."""
        return LatentAttention(self)

    def mlp(self, inner: int) -> MLP:
        """Return a dense MLP, its weights allocated."""
        return MLP(self, inner=inner)

    def make_layers(self) -> list[CheckpointedLayer]:
        """Return all layers, their weights allocated."""
        return [self._layer(index) for index in range(self.num_hidden_layers)]

    def _layer(self, index: int) -> DecoderLayer:
        """DeepseekV3DecoderLayer."""
        attention = self.attention()
        is_dense = index < self.first_k_dense_replace
        mlp = self.mlp(self.intermediate_size) if is_dense else SharedExpertsMoE(self)
        return DecoderLayer(self, attention, mlp)
