"""llama.cpp's architectures by what their layers keep of a token.

Source: llama.cpp 0c1e570 of October 2026: src/llama-arch.cpp (LLM_ARCH_NAMES,
llm_arch_is_recurrent, llm_arch_is_hybrid), src/models/*.cpp (load_arch_hparams, load_swa_pattern).
Not modelled: those that are named nowhere here.
"""

from collections.abc import Mapping

PATTERNS: Mapping[str, tuple[int, bool, int | None]] = {
    "afmoe": (4, False, None),
    "cohere2": (4, False, None),
    "cohere2moe": (4, True, None),
    "exaone4": (4, False, 4096),
    "exaone-moe": (4, False, None),
    "gemma2": (2, False, 4096),
    "gemma3": (6, False, None),
    "gemma3n": (5, False, None),
    "gemma4": (0, False, None),
    "gpt-oss": (2, False, None),
    "llama4": (4, False, 8192),
    "mellum": (4, False, None),
    "mimo2": (0, False, None),
    "olmo2": (4, False, None),
    "plamo3": (8, False, None),
    "smallthinker": (4, True, None),
    "step35": (0, False, None),
}
"""Every so manieth layer sees all tokens (the first of them, or the last; 0: the file says which),
the others a window; the window where the file names none."""
LATENT = frozenset({"deepseek2", "deepseek32", "glm-dsa", "minicpm3", "plm", "mistral4"})
RECURRENT = frozenset({"qwen3next", "qwen35", "qwen35moe"})  # by full_attention_interval
BY_HEADS = frozenset(
    {"granitehybrid", "jamba", "nemotron_h", "nemotron_h_moe", "lfm2", "lfm2moe", "plamo2"}
)  # layers without heads of keys are recurrent
STATES = frozenset({"mamba", "mamba2"})
UNCACHED = frozenset({"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "modern-bert"}) | {
    *("gemma-embedding", "neo-bert", "eurobert")
}
PLAIN = frozenset(
    (  # noqa: SIM905 - one line each would be a page
        "llama deci falcon gpt2 gptneox mpt baichuan starcoder refact bloom stablelm qwen qwen2"
        " qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 phi3 phimoe plamo codeshell orion"
        " internlm2 minicpm gemma starcoder2 xverse command-r dbrx olmo olmoe openelm arctic"
        " deepseek chatglm glm4 glm4moe bitnet jais nemotron exaone granite granitemoe chameleon"
        " bailingmoe bailingmoe2 dots1 arcee ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense"
        " smollm3 seed_oss grovemoe apertus minimax-m2 mistral3 pangu-embedded grok"
    ).split()
)
ARCHITECTURES = PLAIN | LATENT | RECURRENT | BY_HEADS | STATES | UNCACHED | set(PATTERNS)
SEEN = frozenset(
    (  # noqa: SIM905
        "apertus arcee baichuan bailingmoe chatglm cohere2 command-r deepseek2 deepseek32 dots1"
        " ernie4_5 ernie4_5-moe exaone4 gemma gemma2 gemma3 glm-dsa glm4 glm4moe gpt-oss gptneox"
        " granite granitemoe grok hunyuan-dense hunyuan-moe internlm2 llama llama4 minimax-m2"
        " mistral3 nemotron olmo olmo2 olmoe phi3 phimoe qwen2 qwen2moe qwen2vl qwen3 qwen35"
        " qwen35moe qwen3moe qwen3next qwen3vl qwen3vlmoe seed_oss smollm3 starcoder2"
    ).split()
)
"""Architectures whose compute buffers were held against llama.cpp's own."""
