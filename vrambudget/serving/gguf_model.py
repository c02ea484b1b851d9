"""A model as llama.cpp has it: its tensors and what decides its cache, of a file or of a name.

    file     the header's table (`serving.gguf`)
    name     "llama-3.1-8b:Q4_K_M": the tensors that its configuration has, with the types that
             llama.cpp's quantisation gives them (`serving.gguf_types`); norms and biases in float32

Source: llama.cpp of August 2025: src/llama-model.cpp (load_hparams, load_tensors),
src/llama-hparams.cpp (n_embd_k_gqa, set_swa_pattern); convert_hf_to_gguf.py.
Not modelled: latent attention, recurrent layers, encoders; of names also mixtures of experts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vrambudget.config.model_config import ModelConfig
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.serving.gguf import GgufTensor, read_gguf
from vrambudget.serving.gguf_types import named, type_of

_PATTERNS: Mapping[str, int] = {"gemma2": 2, "gemma3": 6}
"""Every so manieth layer sees all tokens, the others a window."""
_ARCHITECTURES = frozenset(
    {"llama", "mistral3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma", "phi3", *_PATTERNS}
)
_NAMED = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2"})
_NORMS = {"gemma2": 4}  # of a layer; two elsewhere


@dataclass(frozen=True, slots=True)
class GgufModel:
    """Tensors, and for each layer the widths of its keys and values and its window."""

    name: str
    tensors: tuple[GgufTensor, ...]
    keys: tuple[int, ...]  # elements of a token's keys in each layer
    values: tuple[int, ...]
    windows: tuple[int | None, ...]
    heads: int
    hidden: int
    vocabulary: int
    positions: int

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self.keys)


def of_file(path: Path) -> GgufModel:
    """Return the model of a file. Raises VramBudgetError."""
    header = read_gguf(path)
    values, where = header.values, str(path)
    architecture = values.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise NotModelledError(
            f"architecture {architecture!r} is not modelled",
            where=where,
            hint=f"there is {', '.join(sorted(_ARCHITECTURES))}",
        )
    sizes = _Sizes(values, str(architecture), where)
    layers, heads, hidden = sizes.one("block_count"), sizes.one("attention.head_count"), 0
    hidden = sizes.one("embedding_length")
    width = hidden // heads
    shared = sizes.each("attention.head_count_kv", layers, heads)
    keys = sizes.one("attention.key_length", width)
    of_values = sizes.one("attention.value_length", width)
    return GgufModel(
        name=str(values.get("general.name", path.name)),
        tensors=header.tensors,
        keys=tuple(n * keys for n in shared),
        values=tuple(n * of_values for n in shared),
        windows=_windows(str(architecture), sizes, layers),
        heads=heads,
        hidden=hidden,
        vocabulary=_vocabulary(header.tensors, where),
        positions=sizes.one("context_length"),
    )


def of_name(config: ModelConfig, name: str, kind: str) -> GgufModel:
    """Return the model of a configuration, in a file of this kind ("Q4_K_M")."""
    if config.model_type not in _NAMED or not isinstance(config, DecoderConfig):
        raise NotModelledError(
            f"the tensors of a GGUF file of {config.model_type} are not modelled",
            hint=f"there is {', '.join(sorted(_NAMED))}; a local file says its own:"
            " vrambudget serve model.gguf --engine llama.cpp",
        )
    layers, width = config.num_hidden_layers, config.kv_heads * config.head_width
    windowed = "sliding_attention" in config.layer_kinds
    return GgufModel(
        name=f"{name}:{named(kind)}",
        tensors=tuple(_tensors(config, named(kind))),
        keys=(width,) * layers,
        values=(width,) * layers,
        windows=tuple(
            config.window if windowed and k == "sliding_attention" else None
            for k in config.layer_kinds
        ),
        heads=config.num_attention_heads,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        positions=config.max_position_embeddings,
    )


class _Sizes:
    """Values of a header by their names without the architecture."""

    def __init__(self, values: Mapping[str, Any], architecture: str, where: str) -> None:
        self.values, self.architecture, self.where = values, architecture, where

    def one(self, name: str, default: int | None = None) -> int:
        """Return a size."""
        found = self.values.get(f"{self.architecture}.{name}", default)
        if not isinstance(found, int) or isinstance(found, bool) or found <= 0:
            raise VramBudgetError(
                f"{self.architecture}.{name} is {found!r}; it should be a size", where=self.where
            )
        return found

    def each(self, name: str, layers: int, default: int) -> list[int]:
        """Return a size of each layer."""
        found = self.values.get(f"{self.architecture}.{name}", default)
        if isinstance(found, list):
            if len(found) < layers or not all(isinstance(n, int) and n >= 0 for n in found):
                raise VramBudgetError(
                    f"{self.architecture}.{name} has {len(found)} sizes for {layers} layers",
                    where=self.where,
                )
            return found[:layers]
        return [self.one(name, default)] * layers


def _windows(architecture: str, sizes: _Sizes, layers: int) -> tuple[int | None, ...]:
    window = sizes.values.get(f"{architecture}.attention.sliding_window")
    if architecture not in _PATTERNS or not isinstance(window, int):
        return (None,) * layers
    every = _PATTERNS[architecture]
    return tuple(None if layer % every == every - 1 else window for layer in range(layers))


def _vocabulary(tensors: tuple[GgufTensor, ...], where: str) -> int:
    for tensor in tensors:
        if tensor.name == "token_embd.weight" and len(tensor.shape) > 1:
            return tensor.shape[1]
    raise VramBudgetError("there is no token_embd.weight among its tensors", where=where)


def _tensors(config: DecoderConfig, kind: str) -> Iterator[GgufTensor]:
    width, vocabulary, layers = config.hidden_size, config.vocab_size, config.num_hidden_layers
    shared = config.num_attention_heads // config.kv_heads

    def of(tensor: str, rows: int, columns: int, layer: int = 0) -> GgufTensor:
        found = type_of(kind, tensor, columns, layer=layer, layers=layers, shared=shared)
        prefix = "" if tensor in {"token_embd", "output"} else f"blk.{layer}."
        return GgufTensor(f"{prefix}{tensor}.weight", (columns, rows), found)

    tied = config.tie_word_embeddings
    table = type_of(kind, "output" if tied else "token_embd", width, layer=0, layers=1, shared=1)
    yield GgufTensor("token_embd.weight", (width, vocabulary), table)
    for layer in range(layers):
        yield from _layer(config, of, layer)
    yield GgufTensor("output_norm.weight", (width,), "F32")
    if not tied:
        yield of("output", vocabulary, width)


def _layer(config: DecoderConfig, of: Any, layer: int) -> Iterator[GgufTensor]:
    width, head = config.hidden_size, config.head_width
    queries, keys = config.num_attention_heads * head, config.kv_heads * head
    norms = [width] * _NORMS.get(config.model_type, 2)
    norms += [head] * 2 if config.model_type == "qwen3" else []
    if config.model_type == "qwen2" or getattr(config, "attention_bias", False):
        norms += [queries, keys, keys]  # biases
    yield of("attn_q", queries, width, layer)
    yield of("attn_k", keys, width, layer)
    yield of("attn_v", keys, width, layer)
    yield of("attn_output", width, queries, layer)
    yield of("ffn_gate", config.intermediate_size, width, layer)
    yield of("ffn_up", config.intermediate_size, width, layer)
    yield of("ffn_down", width, config.intermediate_size, layer)
    for number, size in enumerate(norms):
        yield GgufTensor(f"blk.{layer}.norm_{number}", (size,), "F32")
