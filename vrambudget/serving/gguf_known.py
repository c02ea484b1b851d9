"""Models that a GGUF file is known of and that have no model card: their configurations, by name.

The keys are those of the publisher's config.json, whose address is that of the repository.
Of each family one or more were loaded by llama.cpp 0c1e570 with `gguf_names`' tensors.
"""

from collections.abc import Mapping
from typing import Any

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
_QWEN_3_5: Mapping[str, Any] = {
    "model_type": "qwen3_5_text",
    "head_dim": 256,
    "vocab_size": 248320,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 262144,
}


def _qwen_3_5(
    sizes: tuple[int, int, int], heads: tuple[int, int, int], **more: Any
) -> Mapping[str, Any]:
    """Return a configuration of layers, width and inner width.

    `heads`: of attention, of its keys, and of the values of recurrent layers.
    """
    names = "num_hidden_layers", "hidden_size", "intermediate_size"
    of_heads = "num_attention_heads", "num_key_value_heads", "linear_num_value_heads"
    found = zip((*names, *of_heads), (*sizes, *heads), strict=True)
    return {**_QWEN_3_5, **dict(found), **more}


def _qwen_3_5_moe(
    sizes: tuple[int, int, int], heads: tuple[int, int, int], experts: tuple[int, int]
) -> Mapping[str, Any]:
    """Return a configuration; `experts`: how many, and how many a token takes."""
    return _qwen_3_5(
        sizes,
        heads,
        model_type="qwen3_5_moe_text",
        moe_intermediate_size=sizes[2],
        shared_expert_intermediate_size=sizes[2],
        num_experts=experts[0],
        num_experts_per_tok=experts[1],
    )


_GGUF_ALONE: Mapping[str, Mapping[str, Any]] = {
    "qwen3.5-0.8b": _qwen_3_5((24, 1024, 3584), (8, 2, 16), tie_word_embeddings=True),
    "qwen3.5-2b": _qwen_3_5((24, 2048, 6144), (8, 2, 16), tie_word_embeddings=True),
    "qwen3.5-4b": _qwen_3_5((32, 2560, 9216), (16, 4, 32), tie_word_embeddings=True),
    "qwen3.5-9b": _qwen_3_5((32, 4096, 12288), (16, 4, 32)),
    "qwen3.5-27b": _qwen_3_5((64, 5120, 17408), (24, 4, 48)),
    "qwen3.5-35b-a3b": _qwen_3_5_moe((40, 2048, 512), (16, 2, 32), (256, 8)),
    "qwen3.5-122b-a10b": _qwen_3_5_moe((48, 3072, 1024), (32, 2, 64), (256, 8)),
    "qwen3.5-397b-a17b": _qwen_3_5_moe((60, 4096, 1024), (32, 2, 64), (512, 10)),
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
    "command-a": {
        "model_type": "cohere2",
        "hidden_size": 12288,
        "num_hidden_layers": 64,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 36864,
        "vocab_size": 256000,
        "sliding_window": 4096,
        "full_attention_interval": 4,
        "max_position_embeddings": 131072,
    },
    "minimax-m2": {
        "model_type": "minimax_m2",
        "hidden_size": 3072,
        "num_hidden_layers": 62,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 1536,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "vocab_size": 200064,
        "max_position_embeddings": 196608,
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
"""Of models that have no rules for training."""


def _mistral(
    sizes: tuple[int, int, int], heads: int, *, words: int, positions: int
) -> Mapping[str, Any]:
    """Return a configuration of layers, width and inner width."""
    return {
        "model_type": "mistral",
        "num_hidden_layers": sizes[0],
        "hidden_size": sizes[1],
        "intermediate_size": sizes[2],
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": words,
        "sliding_window": None,
        "max_position_embeddings": positions,
    }


CONFIGS: Mapping[str, Mapping[str, Any]] = {
    **_GGUF_ALONE,
    "mistral-large": _mistral((88, 12288, 28672), 96, words=32768, positions=131072),
    "codestral-22b": _mistral((56, 6144, 16384), 48, words=32768, positions=32768),
    "ministral-8b": _mistral((36, 4096, 12288), 32, words=131072, positions=32768),
    "mistral-small-3.2-24b": _mistral((40, 5120, 32768), 32, words=131072, positions=131072),
    "qwen3-coder-480b-a35b": {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 62,
        "hidden_size": 6144,
        "intermediate_size": 8192,
        "moe_intermediate_size": 2560,
        "num_experts": 160,
        "num_experts_per_tok": 8,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
    },
    "glm-4.7-flash": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 47,
        "hidden_size": 2048,
        "intermediate_size": 10240,
        "moe_intermediate_size": 1536,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "head_dim": 256,
        "q_lora_rank": 768,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "n_routed_experts": 64,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "vocab_size": 154880,
        "max_position_embeddings": 202752,
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
    "mistral-large-2407": "mistral-large",
    "codestral": "codestral-22b",
    "ministral-8b-2410": "ministral-8b",
    **dict.fromkeys(
        (
            "mistral-small-3.1-24b",
            "mistral-small-3.1",
            "mistral-small-3.2",
            "devstral-small",
            "devstral-small-24b",
            "magistral-small",
            "magistral-small-24b",
        ),
        "mistral-small-3.2-24b",
    ),
    "glm-4-32b": "glm-4-32b-0414",
    "glm-4.7": "glm-4.6",
    "qwen3-coder-480b": "qwen3-coder-480b-a35b",
    "qwen3.6-27b": "qwen3.5-27b",
    "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",
    **{f"minimax-m2.{n}": "minimax-m2" for n in (1, 5)},
    "mistral-7b-instruct-v0.2": "mistral-7b-v0.2",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-v3-0324": "deepseek-v3",
    "olmoe": "olmoe-1b-7b",
}
"""Other spellings of them."""
TYPES = frozenset(str(values["model_type"]) for values in _GGUF_ALONE.values()) | {"gpt_neox"}
"""Model types whose configuration is read for its GGUF file alone."""
