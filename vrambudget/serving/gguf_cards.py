"""The header of a published GGUF file: of a model's card, or of its configuration.

    [gguf.values]     as in the file, without the architecture; a short list is repeated
    [gguf.tensors]    name = shape, of no layer
    [[gguf.layers]]   `of`: which layers (all, if it is not there); tensors: name = shape

model_cards/gguf/families/ARCHITECTURE.toml says the same for each of its `model_types`, with
expressions of a configuration's keys and of `layer` (a list is read at it); `keys` are those that
may be left out, or have another name. What has no elements is not there. `base` is of all.

Types are those that llama-quantize gives each tensor (`gguf_quants`).

Source: llama.cpp 0c1e570 of October 2026: conversion/*.py, gguf/tensor_mapping.py, and
src/models/*.cpp (load_arch_tensors), which checks names and shapes as it loads a file.
Not modelled: families without a card; their files say their tensors themselves.
"""

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from vrambudget.config.cards import card_text, cards_folder
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.expressions import names_in, value
from vrambudget.serving.gguf import Gguf, GgufTensor, shown
from vrambudget.serving.gguf_model import MOST_LAYERS
from vrambudget.serving.gguf_quants import Shape, type_of

if TYPE_CHECKING:
    from vrambudget.models.parts.decoder import DecoderConfig

_TABLES = ("token_embd", "per_layer_token_embd")
_OF_VALUES = ("attn_v", "attn_qkv")  # whose types change along those that there are
_INNER = ("text_config", "llm_config", "language_config")
_LETTERS = "hybrid_override_pattern"  # one of each layer


@cache
def families() -> Mapping[str, str]:
    """Return the text of each model type's header, which names its model types first."""
    found: dict[str, str] = {}
    for path in sorted((cards_folder() / "gguf" / "families").glob("*.toml")):
        text = card_text(path)
        begin = text[: text.index("]") + 1]  # saves parsing them all
        found |= dict.fromkeys(tomllib.loads(begin)["model_types"], text)
    return found


@cache
def _family(model_type: str) -> Mapping[str, Any]:
    """Return what is known of a model type's header, nothing of one that is not known."""
    return tomllib.loads(families().get(model_type, ""))


def header_of(table: Mapping[str, Any], name: str, kind: str) -> Gguf:
    """Return the header of a table's file of this kind ("Q4_K_M")."""
    architecture, layers = table["architecture"], table["block_count"]
    values = {
        key: [value[n % len(value)] for n in range(layers)] if isinstance(value, list) else value
        for key, value in table["values"].items()
    }
    tensors = tuple(_typed(table, values, kind))
    named = {f"{architecture}.{key}": value for key, value in values.items()}
    named |= {"general.architecture": architecture, f"{architecture}.block_count": layers}
    return Gguf(named, tensors, name)


def family_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is known of a configuration's family. Raises NotModelledError."""
    for each in (config, _whole(config)):
        if found := _family(str(each.get("model_type"))):
            return found
    raise NotModelledError(
        f"the tensors of a GGUF file of {config.get('model_type')} are not modelled",
        hint="a file says its own: vrambudget run model.gguf --gpu GPU; by name there is"
        f" {', '.join(sorted(families().keys() - {'base'}))}",
    )


def parsed(config: "DecoderConfig") -> Mapping[str, Any]:
    """Return a configuration's keys, with what its class says of those that it leaves out."""
    keys = {name: getattr(config, name) for name in config.model_fields}
    return keys | {
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "layer_types": list(config.layer_kinds),
        "rotary_width": config.rotary_width,
        "rope_type": config.rope_type,
        "n_routed_experts": getattr(config, "experts", None),
    }


def _whole(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration of a model that sees with that of its text."""
    inner = (config[key] for key in _INNER if isinstance(config.get(key), Mapping))
    return {**config, **next(inner, {})}


def table_of(config: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the table of a configuration. Raises VramBudgetError for what has none."""
    family, base = family_of(config), _family("base")
    own = family.get("keys", {})
    sizes = _TensorSizes(_whole(config), {**own, **base["keys"], **own}, where)
    layers = sizes.at("num_hidden_layers", 0)
    if not 0 < layers <= MOST_LAYERS:
        raise VramBudgetError(f"num_hidden_layers is {shown(layers)}", where=where)
    values = {
        key: [sizes.at(text, n) for n in range(layers)]
        for key, text in {**base["values"], **family.get("values", {})}.items()
    }
    found = {k: each[0] if len(set(each)) == 1 else each for k, each in values.items()}
    which = "with_experts" if found.get("expert_count") else "architecture"
    return {
        "architecture": family.get(which, family["architecture"]),
        "block_count": layers,
        "values": found,
        "tensors": sizes.shapes({**base["tensors"], **family.get("tensors", {})}, 0),
        "layers": [
            {"of": [n], "tensors": sizes.shapes(group["tensors"], n)}
            for n in range(layers)
            for group in family["layers"]
            if sizes.at(group.get("of", "1"), n)
        ],
    }


class _TensorSizes:
    """A configuration's numbers and words, with the keys that it left out."""

    def __init__(self, config: Mapping[str, Any], keys: Mapping[str, str], where: str) -> None:
        self.where = where
        self.found: dict[str, Any] = {
            key: list(each) if key == _LETTERS and isinstance(each, str) else each
            for key, each in config.items()
            if isinstance(each, int | str | list)
        }
        for key, text in keys.items():
            with suppress(VramBudgetError):  # what is missing is named where it is needed
                self.found.setdefault(key, self.at(text, 0))
        layers = self.found.get("num_hidden_layers")
        for key, each in list(self.found.items()):
            if isinstance(each, list) and len(each) != layers:
                del self.found[key]

    def at(self, text: str, layer: int) -> int:
        """Return an expression's value at a layer."""
        sizes = {
            name: found[layer] if isinstance(found, list) and layer < len(found) else found
            for name in names_in(text)
            if (found := self.found.get(name)) is not None
        } | {"layer": layer}
        if missing := ", ".join(sorted(names_in(text) - sizes.keys())):
            raise VramBudgetError(f"the configuration has no {missing}", where=self.where)
        try:
            size = value(text, sizes)
        except (TypeError, VramBudgetError):
            size = -1
        if type(size) is not int or size < 0:
            said = ", ".join(f"{name} is {shown(found)}" for name, found in sizes.items())
            raise VramBudgetError(f"{said}: {text} is no size", where=self.where)
        return size

    def shapes(self, tensors: Mapping[str, list[str]], layer: int) -> dict[str, list[int]]:
        """Return the tensors' shapes at a layer, but of those that have no elements."""
        found = {name: [self.at(text, layer) for text in of] for name, of in tensors.items()}
        return {name: shape for name, shape in found.items() if min(shape) > 0}


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
    is_70b = layers == 80 and heads > 1 and table["architecture"] in {"llama", "qwen2"}  # noqa: PLR2004 - LLM_TYPE_70B
    many = sum(name.removesuffix(".weight") in _OF_VALUES for _, _, name, _ in named)
    seen = 0
    for prefix, layer, name, shape in named:
        plain = name.removesuffix(".weight")
        by = "output" if plain in _TABLES and "output.weight" not in table["tensors"] else plain
        model = Shape(many if plain in _OF_VALUES else layers, heads, experts, is_70b)
        number = seen if plain in _OF_VALUES else layer
        seen += plain in _OF_VALUES
        of = type_of(kind, by, tuple(shape), model, layer=number)
        yield GgufTensor(prefix + name, tuple(shape), of if name != plain else "F32")
