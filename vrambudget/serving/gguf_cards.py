"""The header of a published GGUF file, of its card: values and tensors, as llama.cpp loads them.

    [gguf.values]     as in the file, without the architecture; a short list is repeated
    [gguf.tensors]    name = shape, of no layer
    [[gguf.layers]]   `of`: which layers (all, if it is not there); tensors: name = shape

Types are those that llama-quantize gives each tensor (`gguf_quants`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vrambudget.serving.gguf import Gguf, GgufTensor
from vrambudget.serving.gguf_quants import Shape, type_of

_TABLES = ("token_embd", "per_layer_token_embd")
_OF_VALUES = ("attn_v", "attn_qkv")  # whose types change along those that there are


def header_of(card: Mapping[str, Any], kind: str) -> Gguf:
    """Return the header of a card's file of this kind ("Q4_K_M")."""
    table = card["gguf"]
    architecture, layers = table["architecture"], table["block_count"]
    values = {
        key: [value[n % len(value)] for n in range(layers)] if isinstance(value, list) else value
        for key, value in table["values"].items()
    }
    tensors = tuple(_typed(table, values, kind))
    named = {f"{architecture}.{key}": value for key, value in values.items()}
    named |= {"general.architecture": architecture, f"{architecture}.block_count": layers}
    return Gguf(named, tensors, card["name"])


def _typed(table: Mapping[str, Any], values: Mapping[str, Any], kind: str) -> Iterator[GgufTensor]:
    layers, experts = table["block_count"], values.get("expert_count", 0)
    shared = values["attention.head_count_kv"]
    shared = shared[0] if isinstance(shared, list) else shared  # n_gqa: the first layer's
    heads = values["attention.head_count"] // shared if shared else 0
    named = [("", 0, name, shape) for name, shape in table["tensors"].items()]
    for layer in range(layers):
        for group in table["layers"]:
            if layer in group.get("of", (layer,)):
                of = group["tensors"].items()
                named += [(f"blk.{layer}.", layer, name, shape) for name, shape in of]
    many = sum(name.removesuffix(".weight") in _OF_VALUES for _, _, name, _ in named)
    seen = 0
    for prefix, layer, name, shape in named:
        plain = name.removesuffix(".weight")
        by = "output" if plain in _TABLES and "output.weight" not in table["tensors"] else plain
        model = Shape(many if plain in _OF_VALUES else layers, heads, experts)
        number = seen if plain in _OF_VALUES else layer
        seen += plain in _OF_VALUES
        of = type_of(kind, by, tuple(shape), model, layer=number)
        yield GgufTensor(prefix + name, tuple(shape), of if name != plain else "F32")
