"""A model as llama.cpp has it: its tensors and what decides its cache, of a file or of a name.

    file     the header's table and values (`serving.gguf`)
    name     "llama-3.1-8b:Q4_K_M": the tensors of its configuration (`serving.gguf_cards`), with
             the types that llama.cpp's quantisation gives them (`serving.gguf_quants`)

A layer keeps keys and values of all tokens, of a window, one latent row, nothing (it reads an
earlier layer's), or a state that does not grow (recurrent layers).

Source: llama.cpp 0c1e570 of October 2026: src/llama-model.cpp (load_hparams, load_swa_pattern,
create_memory), src/llama-hparams.cpp (n_embd_k_gqa, n_embd_r, n_embd_s, is_mla, has_kv),
src/models/*.cpp (load_arch_hparams).
Not modelled: architectures that are named nowhere here.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.serving.gguf import Gguf, GgufTensor, read_gguf, shown
from vrambudget.serving.gguf_architectures import (
    ARCHITECTURES,
    BY_HEADS,
    PATTERNS,
    RECURRENT,
    STATES,
    UNCACHED,
)

MOST_LAYERS = 512  # LLAMA_MAX_LAYERS
_MOST = 1 << 31
_INDEXER = "indexer.attn_k.weight"
_LAYER = re.compile(r"blk\.(\d{1,9})\.")


@dataclass(frozen=True, slots=True)
class GgufModel:
    """Tensors, and for each layer the widths of its keys and values, its window and its state."""

    name: str
    architecture: str
    tensors: tuple[GgufTensor, ...]
    keys: tuple[int, ...]  # elements of a token's keys in each layer; 0: none are kept
    values: tuple[int, ...]
    windows: tuple[int | None, ...]
    states: tuple[int, ...]  # float32 elements that a sequence keeps in each layer
    heads: int
    hidden: int
    vocabulary: int
    positions: int
    experts: int = 0
    experts_used: int = 0
    head_keys: int = 0  # elements of a head's keys, and of its values
    head_values: int = 0
    window_head: tuple[int, int] = (0, 0)  # in layers with a window
    indexed: tuple[int, ...] = ()  # elements of a token's keys of each layer's indexer
    chosen: int = 0  # tokens that an indexer lets a layer see, at most
    path: str | None = None  # of a file that was named

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self.keys)


def of_file(path: Path) -> GgufModel:
    """Return the model of a file, or of its parts. Raises VramBudgetError."""
    return of_header(read_gguf(path), path.name, str(path))


def of_header(header: Gguf, name: str, path: str | None = None) -> GgufModel:
    """Return the model that a header says. Raises VramBudgetError."""
    architecture = header.of("general.architecture", str, "an architecture's name")
    if architecture not in ARCHITECTURES:
        kind = header.of("general.type", str, "a type") or "model"
        what = f"architecture {architecture!r}" if kind == "model" else f"a file of type {kind!r}"
        raise NotModelledError(
            f"{what} is not modelled",
            where=header.where,
            hint=f"there is {', '.join(sorted(ARCHITECTURES))}",
        )
    sizes = _Sizes(header, str(architecture))
    layers, hidden = sizes.one("block_count", most=MOST_LAYERS), sizes.one("embedding_length")
    keys, values, windows = _cached(sizes, layers, hidden)
    states = _states(sizes, layers, keys)
    heads = max(1, *sizes.each("attention.head_count", layers, 1))
    used = layers - sizes.one("nextn_predict_layers", 0, least=0, most=layers)
    recurrent = [state or layer >= used for layer, state in enumerate(states)]
    head = [sizes.one(f"attention.{part}_length", hidden // heads) for part in ("key", "value")]
    tensors = _of_layers(header, layers, used)
    indexing = {t.name for t in tensors if t.name.endswith(_INDEXER)}
    index = sizes.one("attention.indexer.key_length") if indexing else 0
    return GgufModel(
        name=str(header.of("general.name", str, "a name") or name),
        architecture=str(architecture),
        tensors=tensors,
        indexed=tuple(index * (f"blk.{n}.{_INDEXER}" in indexing) for n in range(layers)),
        chosen=sizes.one("attention.indexer.top_k") if indexing else 0,
        keys=tuple(0 if r else n for n, r in zip(keys, recurrent, strict=True)),
        values=tuple(0 if r else n for n, r in zip(values, recurrent, strict=True)),
        windows=windows,
        states=states,
        heads=heads,
        hidden=hidden,
        vocabulary=_vocabulary(header),
        positions=sizes.one("context_length"),
        experts=sizes.one("expert_count", 0, least=0),
        experts_used=max(sizes.each("expert_used_count", layers, 0)),
        head_keys=head[0],
        head_values=head[1],
        window_head=(
            sizes.one("attention.key_length_swa", head[0]),
            sizes.one("attention.value_length_swa", head[1]),
        ),
        path=path,
    )


def _of_layers(header: Gguf, layers: int, used: int) -> tuple[GgufTensor, ...]:
    """Return the tensors that are loaded: a layer that predicts further tokens is skipped."""
    found = []
    for tensor in header.tensors:
        layer = _LAYER.match(tensor.name)
        number = int(layer[1]) if layer else -1
        if number >= layers or (layer is None and tensor.name.startswith("blk.")):
            raise VramBudgetError(
                f"tensor {tensor.name!r} is of no layer: there are {layers}", where=header.where
            )
        if number < used:
            found.append(tensor)
    return tuple(found)


class _Sizes:
    """Values of a header by their names without the architecture."""

    def __init__(self, header: Gguf, architecture: str) -> None:
        self.header, self.architecture = header, architecture

    def has(self, name: str) -> bool:
        """Return whether the file says it."""
        return f"{self.architecture}.{name}" in self.header.values

    def one(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = _MOST
    ) -> int:
        """Return a size."""
        found = self.header.values.get(f"{self.architecture}.{name}", default)
        if type(found) is not int or not least <= found <= most:
            raise VramBudgetError(
                f"{self.architecture}.{name} is {shown(found)}; it should be a size from {least}"
                f" to {most:,}",
                where=self.header.where,
            )
        return found

    def each(self, name: str, layers: int, default: int) -> list[int]:
        """Return a size of each layer."""
        found = self.header.values.get(f"{self.architecture}.{name}", default)
        if isinstance(found, list):
            if len(found) < layers or not all(type(n) is int and 0 <= n <= _MOST for n in found):
                raise VramBudgetError(
                    f"{self.architecture}.{name} has {len(found)} values for {layers} layers, or"
                    " not all are sizes",
                    where=self.header.where,
                )
            return found[:layers]
        return [self.one(name, default, least=0)] * layers

    def flags(self, name: str, layers: int) -> list[bool] | None:
        """Return what a list says of each layer; None where it is no list of flags."""
        found = self.header.values.get(f"{self.architecture}.{name}")
        if isinstance(found, list) and len(found) >= layers:
            return [bool(flag) for flag in found[:layers]]
        return None


def _cached(
    sizes: _Sizes, layers: int, hidden: int
) -> tuple[list[int], list[int], tuple[int | None, ...]]:
    """Return the elements of each layer's keys and values, and its window."""
    windows = _windows(sizes, layers)
    if sizes.architecture in UNCACHED or sizes.architecture in STATES:
        return [0] * layers, [0] * layers, windows
    heads = sizes.each("attention.head_count", layers, 0)
    shared = sizes.each("attention.head_count_kv", layers, heads[0])
    width = hidden // max(1, *heads)
    keys, values = (
        sizes.one("attention.key_length", width),
        sizes.one("attention.value_length", width),
    )
    if sizes.has("attention.key_length_mla"):  # one latent row, of which values are a part
        return [n * keys for n in shared], [0] * layers, windows
    within = (
        sizes.one("attention.key_length_swa", keys),
        sizes.one("attention.value_length_swa", values),
    )
    both = [within if window is not None else (keys, values) for window in windows]
    kept = layers - sizes.one("attention.shared_kv_layers", 0, least=0)
    if sizes.architecture == "gemma3n":
        kept = 20  # n_layer_kv_from_start
    shared = [n if layer < kept else 0 for layer, n in enumerate(shared)]
    return (
        [n * k for n, (k, _) in zip(shared, both, strict=True)],
        [n * v for n, (_, v) in zip(shared, both, strict=True)],
        windows,
    )


def _states(sizes: _Sizes, layers: int, keys: list[int]) -> tuple[int, ...]:
    """Return the elements of each layer's state, 0 where it is not recurrent."""
    name = sizes.architecture
    if name in RECURRENT:
        every = sizes.one("full_attention_interval", 4)
        flags = sizes.flags("attention.recurrent_layers", layers)
        recurrent = flags or [(layer + 1) % every != 0 for layer in range(layers)]
    elif name in BY_HEADS:
        inner = sizes.each("feed_forward_length", layers, 0)
        is_nemotron = name.startswith("nemotron")
        recurrent = [not n and not (is_nemotron and ff) for n, ff in zip(keys, inner, strict=True)]
    else:
        recurrent = [name in STATES] * layers
    if not any(recurrent):
        return (0,) * layers
    if sizes.has("shortconv.l_cache"):
        state = sizes.one("embedding_length") * (sizes.one("shortconv.l_cache") - 1)
    else:
        inner_size, size = sizes.one("ssm.inner_size"), sizes.one("ssm.state_size")
        groups = sizes.one("ssm.group_count", 0, least=0)
        convolved = inner_size + 2 * groups * size
        state = (sizes.one("ssm.conv_kernel") - 1) * convolved + size * inner_size
    return tuple(state if r else 0 for r in recurrent)


def _windows(sizes: _Sizes, layers: int) -> tuple[int | None, ...]:
    """Return how many tokens each layer keeps, None for all."""
    none = (None,) * layers
    if sizes.architecture not in PATTERNS:
        return none
    every, is_first, default = PATTERNS[sizes.architecture]
    if sizes.architecture == "exaone4" and layers != 64:  # noqa: PLR2004 - as llama.cpp has it
        return none
    window = sizes.one("attention.sliding_window", default or 0, least=0)
    if sizes.architecture == "llama4" and window:
        window = 8192  # chunks, whatever the file says
    if not window:
        return none
    pattern = "attention.sliding_window_pattern"
    if flags := sizes.flags(pattern, layers):
        return tuple(window if flag else None for flag in flags)
    every = sizes.one(pattern, every, least=0)
    full = 0 if is_first else every - 1
    return tuple(None if every and n % every == full else window for n in range(layers))


def _vocabulary(header: Gguf) -> int:
    for tensor in header.tensors:
        if tensor.name == "token_embd.weight" and len(tensor.shape) > 1:
            return tensor.shape[1]
    raise VramBudgetError("there is no token_embd.weight among its tensors", where=header.where)
