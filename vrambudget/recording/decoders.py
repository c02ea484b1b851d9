"""A decoder's layer as a program: what a type's own code does between what all types share.

    recorded   a layer, the norm behind the last one; what embeddings and logits are multiplied by
    a step     masks, rotary tables, caches, attention and experts, which transformers has once for
               all decoders: models.parts has their rules, for training and for generation

A layer is recorded at several sizes, with positions of one row and of every row, with all biases
that its keys can give it.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import transformers
from transformers.models.auto import modeling_auto

from vrambudget.config.model_config import HARMLESS_VALUES
from vrambudget.config.versions import installed_version
from vrambudget.errors import VramBudgetError
from vrambudget.program.form import Program
from vrambudget.recording.decoder_cut import cut, is_in
from vrambudget.recording.decoder_keys import (
    FIELDS,
    FOLLOWED,
    FORMS,
    around_layers,
    by_layer,
    changes,
    kinds_of_layers,
    layer_in,
    other_names,
)
from vrambudget.recording.decoder_steps import steps_for
from vrambudget.recording.keys import OF_FILES, Values
from vrambudget.recording.programs import Model, Probe, program_of
from vrambudget.recording.rows import changed_operations, inserted, kinds_of
from vrambudget.recording.runs import RATES, recording

_SIZES = (
    # heads, of them keys' and values', their width, width, inner width, batch, length, rows
    *((6, 3, 16, 100, 176, 3, 40, 1), (10, 5, 16, 100, 176, 3, 40, 3)),
    *((6, 3, 24, 100, 176, 3, 40, 1), (6, 3, 16, 132, 176, 5, 40, 1)),
    *((6, 2, 16, 100, 272, 3, 40, 3), (6, 3, 16, 100, 176, 3, 52, 1)),
    *((14, 7, 32, 200, 304, 5, 56, 5), (15, 5, 40, 328, 208, 7, 29, 1)),
    *((12, 4, 24, 260, 408, 4, 61, 4), (6, 3, 16, 100, 176, 7, 44, 7)),
    *((6, 3, 16, 100, 176, 3, 40, 1), (6, 3, 16, 100, 176, 3, 40, 3)),
)
_EXPERTS = (10, 14, 10, 10, 10, 10, 18, 22, 13, 10, 10, 10)
_OF_EXPERTS = {
    "num_local_experts": _EXPERTS,
    "num_experts": _EXPERTS,
    "num_experts_per_tok": (2, 2, 3, 2, 2, 2, 5, 4, 6, 2, 2, 2),
    "moe_intermediate_size": (112, 112, 112, 240, 112, 112, 304, 192, 368, 112, 112, 112),
    "shared_expert_intermediate_size": (
        *(144, 144, 144, 144, 160, 144, 208, 272, 336, 144, 144, 144),
    ),
}
"""Further sizes of mixtures of experts, of each recording."""

_JITTER = "router_jitter_noise"
"""A key of what is done in training alone, and only where it is above 0."""

_PRECISIONS = {10: "fp32", 11: "amp-bf16"}
_WIDTHS = ("free", "shared", "square")
"""Widths that a type takes: any, one that heads divide, or just as wide as heads are together."""

_NAMES = (
    *("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size"),
    *("intermediate_size", "batch", "length", "rows"),
)


def record_decoder(model_type: str) -> Program:
    """Return the program of a type's layer. Raises VramBudgetError where its code has none."""
    config = transformers.AutoConfig.for_model(model_type)
    own = config.to_dict()
    names = other_names(config, own)
    aliases = {k: v for k, v in config.attribute_map.items() if v not in names} | names
    own |= {name: own[key] for key, name in aliases.items() if key in own}
    biases = {key: value for key, value in own.items() if value in (0, 1) and key.endswith("bias")}
    rates = {key: value for key, value in own.items() if _is_rate(key)}
    full: Values = {
        "model_type": model_type,
        "num_hidden_layers": 3,
        "vocab_size": 211,
        "pad_token_id": 0,
        **dict.fromkeys(biases, True),
        **dict(zip(rates, RATES, strict=False)),
        "hidden_act": "gelu",
        **{key: sizes[0] for key, sizes in _OF_EXPERTS.items() if key in own},
        **{key: 0.01 for key in own if key == _JITTER},
    }
    full |= {key: [value] * full["num_hidden_layers"] for key, value in by_layer(own).items()}
    share = own.get("rope_parameters", {}).get("partial_rotary_factor")
    if share is not None:
        full["partial_rotary_factor"] = share if share < 1 else 0.5  # and a rest that is not
        own["partial_rotary_factor"] = share
    forms = [*FORMS[model_type]()] if model_type in FORMS else []
    full |= forms[0][1] if forms else {}
    width = next(way for way in _WIDTHS if _accepts(full, way))
    program, base = _layer_of(full, width=width)
    switches = [] if forms else [*_switches(full, own, base, width=width)]
    program.when = forms[0][0] if forms else {key: [value] for key, value, *_ in switches}
    for when, keys in forms[1:]:
        other, _ = _layer_of({**full, **keys}, width=width)
        other.when = when
        program.variants.append(other.variant())
    if "mlp_only_layers" in own:
        program.when["mlp"] = ["experts"]
    flags = [row for row in switches if type(row[1]) is bool]
    for rows in [*((row,) for row in switches), *combinations(flags, 2)]:
        own_keys = full | {k: v for *_, changed in rows for k, v in changed.items()}
        try:
            other, _ = _layer_of(own_keys, width=width)
        except VramBudgetError:  # Phi's norms of heads take no other width
            other, _ = _layer_of(own_keys, width="square")
        other.when = program.when | {key: [instead] for key, _, instead, _ in rows}
        program.variants.append(other.variant())
    if "mlp_only_layers" in own:
        dense, _ = _layer_of({**full, "mlp_only_layers": [0, 1, 2]}, width=width)
        dense.when = {"mlp": ["dense"]}
        program.variants.append(dense.variant())
    called = {name: key for key, name in names.items()}
    usual = {k: getattr(type(config), called.get(k, k), own[k]) for k in FIELDS if k in own}
    usual |= rates | biases | {key: value for key, value, *_ in switches if own.get(key) is value}
    buffers = {name for name, *_ in base.recording.facts["buffers"]}
    heads = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    program.source |= {
        "model_type": model_type,
        "fields": usual,
        "biases": {key: _biases_of(full, key, base, width=width) for key in biases if not forms},
        "tasks": ["causal-lm", *(["seq-cls"] if model_type in heads else [])],
        "special_tokens": 1 + (own["bos_token_id"] is not None),
        **({"aliases": aliases} if aliases else {}),
        "width": width,
        "embedding": "scaled" if "model.embed_tokens.embed_scale" in buffers else "plain",
        "tables": base.recording.facts["tables"],
        "followed_in": sorted(
            {installed_version("transformers").rpartition(".")[0], *FOLLOWED.get(model_type, ())}
        ),
        "ignored": sorted(
            {*own, *OF_FILES.get(model_type, ())} - {*usual, *aliases, *HARMLESS_VALUES}
        ),
    }
    program.source |= kinds_of_layers(own, base) | around_layers(program, base)
    return program


def _layer_of(full: Values, *, width: str) -> tuple[Program, Probe]:
    """Return the program of a layer with these keys, and its first recording."""
    probes = [
        _probe(_turned(full, at), sizes, _PRECISIONS.get(at, "bf16"), width=width)
        for at, sizes in enumerate(_SIZES)
    ]
    other = _probe({**full, "hidden_act": "relu"}, _SIZES[0], "bf16", width=width)
    changed = changed_operations(
        probes[0].recording, other.recording, "elementwise.gelu", "elementwise.relu"
    )
    model = Model(activations=dict.fromkeys(changed, "hidden_act"))
    if _JITTER in full:
        without = _probe({**full, _JITTER: 0.0}, _SIZES[0], "bf16", width=width)
        given = inserted(probes[0].recording, without.recording)
        model.given = dict.fromkeys(given or (), _JITTER)
    return cut(program_of(probes, model), probes[0]), probes[0]


def _turned(full: Values, at: int) -> Values:
    """Return keys with a recording's own sizes of experts, and another share of a head rotated."""
    turned = {key: sizes[at] for key, sizes in _OF_EXPERTS.items() if key in full}
    share = full.get("partial_rotary_factor")
    if share is not None and not at % 4:
        turned["partial_rotary_factor"] = share * 1.5
    return full | turned


_OF_NO_LAYER = ("classif", "summary", "layerdrop")


def _is_rate(key: str) -> bool:
    return ("drop" in key or "softcap" in key) and not key.startswith(_OF_NO_LAYER)


def _switches(
    full: Values, own: Values, base: Probe, *, width: str
) -> Iterator[tuple[str, Any, Any, Values]]:
    """Yield those changes of keys that decide what a layer does."""
    for key, usual, instead, changed in changes(full, own, base):
        try:
            other = _probe({**full, **changed}, _SIZES[0], "bf16", width=width)
        except VramBudgetError:
            continue
        layer = layer_in(base)
        a, b = (
            [row for row in kinds_of(probe.recording) if is_in(row[0], layer)]
            for probe in (base, other)
        )
        if a != b or _parameters_in(layer, base) != _parameters_in(layer, other):
            yield key, usual, instead, changed


def _sizes_of(sizes: Sequence[int], *, width: str) -> dict[str, int]:
    found = dict(zip(_NAMES, sizes, strict=True))
    if width == "square":
        found["hidden_size"] = found["num_attention_heads"] * found["head_dim"]
    elif width == "shared":
        found["hidden_size"] += -found["hidden_size"] % found["num_attention_heads"]
    return found


def _accepts(full: Values, width: str) -> bool:
    """Return whether the type takes this width: all but "square" have a key for that of heads."""
    heads, kv_heads, head_dim, *others = _SIZES[0]
    wide = heads, kv_heads, 2 * head_dim, *others
    try:
        found = [_probe(full, sizes, "bf16", width=width) for sizes in (_SIZES[0], wide)]
    except VramBudgetError:
        return False
    plain, widened = (probe.recording.facts["parameters"] for probe in found)
    return width == "square" or plain != widened


def _probe(full: Values, sizes: Sequence[int], precision: str, *, width: str) -> Probe:
    found = _sizes_of(sizes, width=width) | {k: full[k] for k in _OF_EXPERTS if k in full}
    config = transformers.AutoConfig.for_model(full["model_type"])
    own = config.to_dict()
    called = {name: key for key, name in other_names(config, own).items()}
    if full.get("new_decoder_architecture") is False:
        found["num_key_value_heads"] = found["num_attention_heads"]
    if "new_decoder_architecture" in full:
        found["heads_per_group"] = found["num_attention_heads"] // found["num_key_value_heads"]
    no_keys = {"batch", "length", "rows", "heads_per_group"}
    no_keys |= {"head_dim"} if width == "square" and "head_dim" not in own else set()
    sizes_of = {k: v for k, v in found.items() if k not in no_keys}
    keys = {called.get(k, k): v for k, v in {**full, **sizes_of}.items()}
    job = {"batch": found["batch"], "block": found["length"], "precision": precision}
    job |= {"task": "causal-lm", "use_cache": False}
    with steps_for(full["model_type"], found["rows"]) as heard:
        made = recording(keys, frozenset(map(called.get, sizes_of, sizes_of)), **job)
    found["rotary_width"] = heard.facts.get("rotary_width", 0)
    made.facts |= {
        "loss": None,
        "outputs": [heard.facts["hidden"]],
        "tables": heard.facts.get("tables"),
    }
    return Probe(found, precision, made)


def _biases_of(full: Values, key: str, base: Probe, *, width: str) -> list[str]:
    """Return the modules of a layer that have no bias where a key says so."""
    without = _probe({**full, key: False}, _SIZES[0], "bf16", width=width)
    gone = _parameters_in(layer_in(base), base) - _parameters_in(layer_in(base), without)
    return sorted(name.removesuffix(".bias") for name in gone)


def _parameters_in(layer: str, probe: Probe) -> set[str]:
    names = (name for name, *_ in probe.recording.facts["parameters"])
    return {name[len(layer) + 1 :] for name in names if is_in(name, layer)}
