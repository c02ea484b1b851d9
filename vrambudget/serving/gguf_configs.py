"""Models that have rules as GGUF files and none for training: their configurations, by name.

The keys are those of the publisher's config.json, whose address is that of the repository.
Each was loaded by llama.cpp 0c1e570 with the tensors that `serving.gguf_names` makes of it.
"""

from collections.abc import Mapping
from typing import Any

from vrambudget.config.settings import Size
from vrambudget.models.parts.decoder import DecoderConfig, LayerType


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


_GLM_4_5: Mapping[str, Any] = {
    "model_type": "glm4_moe",
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151552,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 131072,
}
_GLM_4_5_LARGE: Mapping[str, Any] = {
    **_GLM_4_5,
    "hidden_size": 5120,
    "num_hidden_layers": 92,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_experts": 160,
    "first_k_dense_replace": 3,
    "use_qk_norm": True,
}
_LLAMA_4: Mapping[str, Any] = {
    "model_type": "llama4_text",
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 16384,
    "moe_intermediate_size": 8192,
    "num_experts_per_tok": 1,
    "n_shared_experts": 1,
    "vocab_size": 202048,
    "sliding_window": 8192,
    "full_attention_interval": 4,
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "glm-4.5-air": {
        **_GLM_4_5,
        "hidden_size": 4096,
        "num_hidden_layers": 46,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_experts": 128,
        "first_k_dense_replace": 1,
    },
    "glm-4.5": _GLM_4_5_LARGE,
    "glm-4.6": {**_GLM_4_5_LARGE, "max_position_embeddings": 202752},
    "llama-4-scout": {**_LLAMA_4, "num_experts": 16, "max_position_embeddings": 10485760},
    "llama-4-maverick": {
        **_LLAMA_4,
        "num_experts": 128,
        "interleave_moe_layer_step": 2,
        "max_position_embeddings": 1048576,
    },
    "command-r7b": {
        "model_type": "cohere2",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 14336,
        "vocab_size": 256000,
        "sliding_window": 4096,
        "full_attention_interval": 4,
        "max_position_embeddings": 8192,
    },
    "qwen3-next-80b-a3b": {
        "model_type": "qwen3_next",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "vocab_size": 151936,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 262144,
    },
    "olmoe-1b-7b": {
        "model_type": "olmoe",
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "intermediate_size": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "vocab_size": 50304,
        "max_position_embeddings": 4096,
    },
    "granite-3.1-3b-a800m": {
        "model_type": "granitemoe",
        "hidden_size": 1536,
        "num_hidden_layers": 32,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "intermediate_size": 512,
        "num_experts": 40,
        "num_experts_per_tok": 8,
        "vocab_size": 49155,
        "tie_word_embeddings": True,
        "max_position_embeddings": 131072,
    },
}
"""By the names that people type."""
ALSO: Mapping[str, str] = {
    "llama4:scout": "llama-4-scout",
    "llama4:maverick": "llama-4-maverick",
    "llama4": "llama-4-scout",
    "qwen3-next": "qwen3-next-80b-a3b",
    "qwen3-next-80b": "qwen3-next-80b-a3b",
    "command-r7b-12-2024": "command-r7b",
    "olmoe": "olmoe-1b-7b",
}
"""Other spellings of them."""
TYPES = frozenset(str(values["model_type"]) for values in CONFIGS.values()) | {"gpt_neox"}
"""Model types whose configuration is read for its GGUF file alone."""
