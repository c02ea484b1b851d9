"""The configuration of a model that has rules as a GGUF file and none for training."""

from vrambudget.config.settings import Size
from vrambudget.models.parts.decoder import DecoderConfig, LayerType

TYPES = frozenset(
    {"cohere2", "glm4_moe", "granitemoe", "llama4_text", "minimax_m2", "olmoe", "qwen3_next"}
    | {"gpt_neox", "qwen3_5_text", "qwen3_5_moe_text"}
    | {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"}
)
"""Model types whose configuration is read for its GGUF file alone."""


class GgufConfig(DecoderConfig):
    """A decoder's sizes, as far as a GGUF file knows them."""

    model_type: str
    use_qk_norm: bool = False
    sliding_window: Size | None = None
    full_attention_interval: Size | None = None  # every so manieth layer sees all tokens
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: Size | None = None
    n_shared_experts: int = 0
    shared_expert_intermediate_size: int = 0
    first_k_dense_replace: int = 0
    interleave_moe_layer_step: Size = 1
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel_dim: int = 0

    @property
    def window(self) -> int:
        """How many tokens a layer with a window looks back."""
        return self.sliding_window or 0

    @property
    def layer_kinds(self) -> list[LayerType]:
        """What each layer attends to."""
        every = self.full_attention_interval
        is_windowed = every is not None and self.sliding_window is not None
        return [
            "sliding_attention" if is_windowed and (n + 1) % (every or 1) else "full_attention"
            for n in range(self.num_hidden_layers)
        ]

    def is_recurrent(self, layer: int) -> bool:
        """Return whether a layer keeps a state and no tokens."""
        return bool(self.linear_num_key_heads and (layer + 1) % (self.full_attention_interval or 1))
