"""The tensors of a GGUF file by the configuration that it is converted from.

    blk.N.attn_q, attn_k, attn_v      or attn_qkv, or latent attention's seven
    blk.N.ffn_gate, ffn_up, ffn_down  or ffn_up of both halves; _exps [in, out, experts], _shexp

Each family says by which of these it is made (`_FAMILIES`). Norms, biases and routers are float32.

Source: llama.cpp 0c1e570 of October 2026: conversion/*.py, gguf/tensor_mapping.py, and
src/models/*.cpp (load_arch_tensors), which checks names and shapes as it loads a file.
Not modelled: families that are not in `_FAMILIES`; their files say their tensors themselves.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vrambudget.config.model_config import ModelConfig
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.serving.gguf import GgufTensor
from vrambudget.serving.gguf_quants import Shape, type_of

_TWO = ("attn_norm", "ffn_norm")
_AFTER = ("post_attention_norm", "post_ffw_norm")
_LLAMA_3 = "llama3"


@dataclass(frozen=True, slots=True)
class Family:
    """What a family's layers are made of. `name`: the architecture's in a file."""

    name: str
    norms: tuple[str, ...] = _TWO
    head_norms: str = ""  # "head": of each head's width, "all": of all heads together
    biases: tuple[str, ...] = ()
    joint_attention: bool = False  # attn_qkv
    joint_mlp: bool = False  # ffn_up holds gate and up
    has_gate: bool = True
    norm_bias: bool = False
    window: bool = False  # some layers keep the tokens of a window alone
    tied: bool = False  # the output is the table of tokens, whatever the configuration says


_QKV = ("attn_q", "attn_k", "attn_v")
_ALL = (*_QKV, "attn_output")
_FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama"),
    "mistral": Family("llama"),
    "mixtral": Family("llama"),
    "smollm3": Family("smollm3"),
    "ernie4_5": Family("ernie4_5"),
    "granite": Family("granite"),
    "seed_oss": Family("seed_oss", norms=("attn_norm", "post_attention_norm")),
    "qwen2": Family("qwen2", biases=_QKV),
    "qwen2_moe": Family("qwen2moe", biases=_QKV),
    "qwen3": Family("qwen3", head_norms="head"),
    "qwen3_moe": Family("qwen3moe", head_norms="head"),
    "gemma": Family("gemma", tied=True),
    "gemma2": Family("gemma2", norms=(*_TWO, *_AFTER), window=True, tied=True),
    **dict.fromkeys(
        ("gemma3", "gemma3_text"),
        Family("gemma3", norms=(*_TWO, *_AFTER), head_norms="head", window=True, tied=True),
    ),
    "olmo2": Family("olmo2", norms=_AFTER, head_norms="all"),
    "olmo3": Family("olmo2", norms=_AFTER, head_norms="all", window=True),
    "exaone4": Family("exaone4", norms=_AFTER, head_norms="head", window=True),
    "cohere": Family("command-r", norms=("attn_norm",), tied=True),
    "glm4": Family("glm4", norms=(*_TWO, *_AFTER), joint_mlp=True),
    "phi3": Family("phi3", joint_attention=True, joint_mlp=True),
    "starcoder2": Family(
        "starcoder2", biases=(*_ALL, "ffn_up", "ffn_down"), has_gate=False, norm_bias=True
    ),
    "gpt_oss": Family(
        "gpt-oss", norms=("attn_norm", "post_attention_norm"), biases=_ALL, window=True
    ),
    "deepseek_v2": Family("deepseek2"),
    "deepseek_v3": Family("deepseek2"),
}


SEEN = frozenset(family.name for family in _FAMILIES.values()) | {
    *("cohere2", "glm4moe", "gptneox", "granitemoe", "llama4", "minimax-m2", "olmoe"),
    *("qwen3next", "qwen35", "qwen35moe"),
}
"""Architectures whose compute buffers were held against llama.cpp's own."""


def has_gguf(config: ModelConfig) -> bool:
    """Return whether a configuration's tensors in a GGUF file have rules."""
    return config.model_type in _FAMILIES


def family_of(model_type: str) -> Family:
    """Return the family of a model type. Raises NotModelledError."""
    if model_type not in _FAMILIES:
        raise NotModelledError(
            f"the tensors of a GGUF file of {model_type} are not modelled",
            hint="a file says its own: vrambudget run model.gguf --gpu 12GB; by name there is"
            f" {', '.join(sorted(_FAMILIES))}",
        )
    return _FAMILIES[model_type]


def is_latent(config: DecoderConfig) -> bool:
    """Return whether keys and values are made of one latent row."""
    return config.model_type in {"deepseek_v2", "deepseek_v3"}


def experts_of(config: DecoderConfig) -> tuple[int, int]:
    """Return how many experts a layer has, and how many of them a token takes."""
    for name in ("num_local_experts", "n_routed_experts", "num_experts"):
        if found := getattr(config, name, 0):
            return int(found), int(getattr(config, "num_experts_per_tok", found))
    return 0, 0


def tensors_of(config: DecoderConfig, kind: str) -> list[GgufTensor]:
    """Return the tensors of a file of this kind ("Q4_K_M"). Raises NotModelledError."""
    return list(_Tensors(config, kind).all())


class _Tensors:
    def __init__(self, config: DecoderConfig, kind: str) -> None:
        self.config, self.kind, self.family = config, kind, family_of(config.model_type)
        self.width = config.hidden_size
        self.experts = experts_of(config)[0]
        heads, shared = config.num_attention_heads, 1 if is_latent(config) else config.kv_heads
        layers = config.num_hidden_layers
        self.shape = Shape(
            layers=layers,
            shared=heads // shared,
            experts=self.experts,
            is_70b=layers == 80 and heads != shared and self.family.name in {"llama", "qwen2"},  # noqa: PLR2004 - as llama.cpp has it
        )

    def all(self) -> Iterator[GgufTensor]:
        """Yield every tensor."""
        table = (self.width, self.config.vocab_size)
        tied = self.config.tie_word_embeddings or self.family.tied
        yield self.of("token_embd", *table, by="output" if tied else "token_embd")
        for layer in range(self.config.num_hidden_layers):
            yield from self._layer(layer)
        yield from self._norm("output_norm", self.width)
        if not tied:
            yield self.of("output", *table)
        yield from self._rotary()

    def of(self, name: str, *shape: int, layer: int | None = None, by: str = "") -> GgufTensor:
        """Return a weight, of the type that its name has (or the name that it goes by)."""
        kind = type_of(self.kind, by or name, shape, self.shape, layer=layer or 0)
        prefix = "" if layer is None else f"blk.{layer}."
        return GgufTensor(f"{prefix}{name}.weight", shape, kind)

    def _norm(self, name: str, width: int) -> Iterator[GgufTensor]:
        yield GgufTensor(f"{name}.weight", (width,), "F32")
        if self.family.norm_bias:
            yield GgufTensor(f"{name}.bias", (width,), "F32")

    def _rotary(self) -> Iterator[GgufTensor]:
        config, half = self.config, self.config.rotary_width // 2
        if config.rope_type == _LLAMA_3:
            yield GgufTensor("rope_freqs.weight", (half,), "F32")
        elif config.rope_type == "longrope":
            yield GgufTensor("rope_factors_long.weight", (half,), "F32")
            yield GgufTensor("rope_factors_short.weight", (half,), "F32")

    def _layer(self, layer: int) -> Iterator[GgufTensor]:
        for norm in self.family.norms:
            yield from self._norm(f"blk.{layer}.{norm}", self.width)
        config: Any = self.config
        if is_latent(config):
            yield from self._latent(layer)
        else:
            yield from self._attention(layer)
        if self.experts and layer >= getattr(config, "first_k_dense_replace", 0):
            yield from self._mixture(layer)
        else:
            yield from self._mlp(layer, self.config.intermediate_size)

    def _with_bias(self, name: str, *shape: int, layer: int) -> Iterator[GgufTensor]:
        config = self.config
        yield self.of(name, *shape, layer=layer)
        given = bool(getattr(config, "attention_bias", False)) and name in _ALL
        given = given and not (config.model_type == "glm4" and name == "attn_output")
        if config.model_type == "seed_oss" and name == "attn_output":
            given = bool(getattr(config, "attention_out_bias", False))
        if given or name in self.family.biases:
            yield GgufTensor(f"blk.{layer}.{name}.bias", shape[1:], "F32")

    def _attention(self, layer: int) -> Iterator[GgufTensor]:
        config, width = self.config, self.width
        head = config.head_width
        queries, keys = config.num_attention_heads * head, config.kv_heads * head
        if self.family.joint_attention:
            yield from self._with_bias("attn_qkv", width, queries + 2 * keys, layer=layer)
        else:
            yield from self._with_bias("attn_q", width, queries, layer=layer)
            yield from self._with_bias("attn_k", width, keys, layer=layer)
            yield from self._with_bias("attn_v", width, keys, layer=layer)
        yield from self._with_bias("attn_output", queries, width, layer=layer)
        if self.family.head_norms:
            whole = self.family.head_norms == "all"
            yield from self._norm(f"blk.{layer}.attn_q_norm", queries if whole else head)
            yield from self._norm(f"blk.{layer}.attn_k_norm", keys if whole else head)
        elif getattr(config, "use_qk_norm", False):  # Command R+: a norm of its own for each head
            heads = (config.num_attention_heads, config.kv_heads)
            for name, many in zip(("attn_q_norm", "attn_k_norm"), heads, strict=True):
                yield GgufTensor(f"blk.{layer}.{name}.weight", (head, many), "F32")
        if config.model_type == "gpt_oss":
            sinks = (config.num_attention_heads,)
            yield GgufTensor(f"blk.{layer}.attn_sinks.weight", sinks, "F32")

    def _latent(self, layer: int) -> Iterator[GgufTensor]:
        config: Any = self.config
        heads, low, rope = (
            config.num_attention_heads,
            config.kv_lora_rank,
            config.qk_rope_head_dim,
        )
        nope, values = config.qk_nope_head_dim, config.v_head_dim
        queries = heads * (nope + rope)
        if config.q_lora_rank:
            yield self.of("attn_q_a", self.width, config.q_lora_rank, layer=layer)
            yield from self._norm(f"blk.{layer}.attn_q_a_norm", config.q_lora_rank)
            yield self.of("attn_q_b", config.q_lora_rank, queries, layer=layer)
        else:
            yield self.of("attn_q", self.width, queries, layer=layer)
        yield self.of("attn_kv_a_mqa", self.width, low + rope, layer=layer)
        yield from self._norm(f"blk.{layer}.attn_kv_a_norm", low)
        yield self.of("attn_k_b", nope, low, heads, layer=layer)
        yield self.of("attn_v_b", low, values, heads, layer=layer)
        yield self.of("attn_output", heads * values, self.width, layer=layer)

    def _mlp(self, layer: int, inner: int, end: str = "") -> Iterator[GgufTensor]:
        if self.family.has_gate and not self.family.joint_mlp:
            yield from self._with_bias(f"ffn_gate{end}", self.width, inner, layer=layer)
        up = 2 * inner if self.family.joint_mlp else inner
        yield from self._with_bias(f"ffn_up{end}", self.width, up, layer=layer)
        yield from self._with_bias(f"ffn_down{end}", inner, self.width, layer=layer)

    def _mixture(self, layer: int) -> Iterator[GgufTensor]:
        config: Any = self.config
        inner = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        blocks = (
            ("ffn_gate_exps", self.width, inner),
            ("ffn_up_exps", self.width, inner),
            ("ffn_down_exps", inner, self.width),
        )
        is_oss = config.model_type == "gpt_oss"
        yield self.of("ffn_gate_inp", self.width, self.experts, layer=layer)
        if is_oss:
            yield GgufTensor(f"blk.{layer}.ffn_gate_inp.bias", (self.experts,), "F32")
        for name, rows, columns in blocks:
            yield self.of(name, rows, columns, self.experts, layer=layer)
            if is_oss:
                bias = (columns, self.experts)
                yield GgufTensor(f"blk.{layer}.{name}.bias", bias, "F32")
        if config.model_type == "deepseek_v3":
            yield GgufTensor(f"blk.{layer}.exp_probs_b.bias", (self.experts,), "F32")
        if shared := getattr(config, "n_shared_experts", 0):
            yield from self._mlp(layer, inner * shared, "_shexp")
        elif shared := getattr(config, "shared_expert_intermediate_size", 0):
            yield GgufTensor(f"blk.{layer}.ffn_gate_inp_shexp.weight", (self.width,), "F32")
            yield from self._mlp(layer, shared, "_shexp")
