"""Record decoders' layers: `PYTHONPATH=. python tests/decoder_programs.py helium cohere ...`.

What a type's own code does between what all types share is a program:

    recorded   a layer, the norm behind the last one; what embeddings and logits are multiplied by
    a step     masks, rotary tables, caches, attention and experts, which transformers has once for
               all decoders: models.parts has their rules, for training and for generation

A layer is recorded at several sizes, with positions of one row and of every row, with all biases
that its keys can give it.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import transformers
from decoder_cut import cut, cut_body, cut_eager, is_in
from decoder_keys import (
    BODIES,
    EAGER,
    FIELDS,
    FOLLOWED,
    FORMS,
    another,
    around_layers,
    by_layer,
    changes,
    kinds_of_layers,
    layer_in,
    other_names,
    undeclared,
    without_usual,
)
from decoder_steps import steps_for
from transformers.models.auto import modeling_auto

from vrambudget.config.model_config import HARMLESS_VALUES
from vrambudget.config.versions import installed_version
from vrambudget.errors import VramBudgetError
from vrambudget.models import RECORDED
from vrambudget.models.parts.latent import WIDTHS, widths_of
from vrambudget.program.form import Program, Variant
from vrambudget.program.writing import written
from vrambudget.recording.keys import OF_FILES, Values
from vrambudget.recording.merging import UnfitError
from vrambudget.recording.programs import Probe, RecordedModel, program_of
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
    "n_shared_experts": (2, 2, 2, 2, 2, 3, 4, 3, 1, 2, 2, 2),
    "moe_intermediate_size": (112, 112, 112, 240, 112, 112, 304, 192, 368, 112, 112, 112),
    "shared_expert_intermediate_size": (
        *(144, 144, 144, 144, 160, 144, 208, 272, 336, 144, 144, 144),
    ),
}
"""Further sizes of mixtures of experts, of each recording."""
_LATENT = "kv_lora_rank"
"""A key of latent attention, whose code works on what a cache returns."""
_EXPERTS_IN_GROUPS = (24, 30, 24, 24, 36, 24, 40, 42, 48, 24, 24, 24)
_OF_LATENT: Mapping[str, tuple[int, ...]] = {
    **_OF_EXPERTS,
    "num_local_experts": _EXPERTS_IN_GROUPS,
    "num_experts": _EXPERTS_IN_GROUPS,
    "n_group": (4, 6, 3, 4, 4, 4, 5, 7, 8, 4, 4, 4),
    "topk_group": (2, 2, 2, 3, 2, 2, 3, 4, 5, 2, 2, 2),
    "kv_lora_rank": (48, 48, 64, 48, 48, 48, 80, 112, 56, 48, 48, 48),
    "q_lora_rank": (72, 72, 72, 88, 72, 72, 104, 136, 120, 72, 72, 72),
    "qk_nope_head_dim": (20, 20, 20, 20, 28, 20, 36, 44, 52, 20, 20, 20),
    "qk_rope_head_dim": (8, 8, 8, 8, 8, 12, 16, 24, 10, 8, 8, 8),
    "v_head_dim": (18, 26, 18, 18, 18, 18, 34, 30, 50, 18, 18, 18),
    "cached": (47, 49, 47, 47, 51, 59, 69, 37, 82, 51, 47, 47),
}
"""Those of latent attention and of experts in groups; tokens that the cache returns."""


def _of_type(values: Values) -> Mapping[str, tuple[int, ...]]:
    if _LATENT in values:
        return _OF_LATENT
    if values["model_type"] in BODIES.keys() | EAGER:
        return {**_OF_EXPERTS, "cached": _OF_LATENT["cached"]}
    in_groups = "n_group" in values
    return {k: v for k, v in _OF_LATENT.items() if k != "cached"} if in_groups else _OF_EXPERTS


_OF_BODIES = {
    "vocab_size": (211, 211, 211, 211, 211, 211, 307, 401, 223, 263, 211, 211),
    "max_position_embeddings": (150, 150, 150, 150, 170, 150, 190, 230, 270, 310, 150, 150),
}
"""Sizes of what stands around the layers."""

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
    aliases = {k: v for k, v in config.attribute_map.items() if v in FIELDS} | names
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
        **{k: of[0] for k, of in _of_type(own).items() if k in own or k == "cached"},
        **{key: 0.01 for key in own if key == _JITTER},
    }
    full |= {key: [value] * full["num_hidden_layers"] for key, value in by_layer(own).items()}
    share = own.get("rope_parameters", {}).get("partial_rotary_factor")
    if share is not None:
        full["partial_rotary_factor"] = share if share < 1 else 0.5  # and a rest that is not
        own["partial_rotary_factor"] = share
    forms = [*FORMS[model_type]()] if model_type in FORMS else []
    said = forms[0][1] if forms else {}
    full |= said
    if share == 1 and not any(_accepts(full, way) for way in _WIDTHS):
        del full["partial_rotary_factor"]  # no part of a head is left as it is
    width = next(way for way in _WIDTHS if _accepts(full, way))
    program, base = _layer_of(full, width=width)
    switches = [] if forms else [*_switches(full, own, base, width=width)]
    program.when = forms[0][0] if forms else {key: [value] for key, value, *_ in switches}
    layers = [base]
    for when, keys in forms[1:]:
        other, probe = _layer_of({**full, **keys}, width=width)
        other.when = when
        program.variants.append(other.variant())
        layers.append(probe)
    if "mlp_only_layers" in own:
        program.when["mlp"] = ["experts"]
    deciding = {*_add_switched(program, full, switches, width=width)}
    if "mlp_only_layers" in own:
        dense, _ = _layer_of({**full, "mlp_only_layers": [0, 1, 2]}, width=width)
        dense.when = {"mlp": ["dense"]}
        program.variants.append(dense.variant())
    if bodies := [*_bodies(full, width=width)]:
        for variant in program.every():
            variant.when["part"] = ["layer"]
        program.variants += bodies
    if bodies and "positions" in (source := bodies[0].program.source):
        program.source["positions"] = source["positions"]
    usual = _usual(config, own, names)
    usual |= rates | biases | {k: own[k] for k in said if k in own and k not in FIELDS}
    usual |= {key: value for key, value, *_ in switches if own.get(key) is value}
    deciding |= {*_deciding(full, own, base, width=width)} - {*usual, *aliases}
    usual |= {key: own[key] for key in sorted(deciding)}
    buffers = {name for name, *_ in base.recording.facts["buffers"]}
    heads = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    program.source |= {
        "model_type": model_type,
        "fields": usual,
        "biases": {
            key: sorted({x for probe in layers for x in _biases_of(probe, key, width=width)})
            for key in biases
            if key not in said
        },
        "tasks": ["causal-lm", *(["seq-cls"] if model_type in heads else [])],
        "special_tokens": 1 + (own["bos_token_id"] is not None),
        **({"aliases": aliases} if aliases else {}),
        **({"fixed": sorted(deciding)} if deciding else {}),
        "width": width,
        "embedding": "scaled" if "model.embed_tokens.embed_scale" in buffers else "plain",
        "tables": base.recording.facts["tables"],
        "followed_in": sorted(
            {installed_version("transformers").rpartition(".")[0], *FOLLOWED.get(model_type, ())}
        ),
        "ignored": sorted(
            {*(own.keys() - HARMLESS_VALUES), *OF_FILES.get(model_type, ())} - {*usual, *aliases}
        ),
    }
    program.source |= kinds_of_layers(own, base) | around_layers(program, base)
    program.source |= without_usual(model_type, own, base)
    return program


def _bodies(full: Values, *, width: str) -> Iterator[Variant]:
    """Yield the programs of what stands around the layers, by how the model is called."""
    for when, keys in BODIES.get(full["model_type"], tuple)():
        for padded, placed in product((False, True), repeat=2):
            body = {"padded": padded, "placed": placed}
            usual = {key: sizes[0] for key, sizes in _OF_BODIES.items()}
            program, _ = _layer_of({**full, **usual, **keys}, width=width, body=body)
            program.when = {"part": ["body"], **{k: [x] for k, x in body.items()}, **when}
            yield program.variant()
    if full["model_type"] in EAGER:
        program, _ = _layer_of(full, width=width, body={"eager": True})
        program.when = {"part": ["eager"]}
        yield program.variant()


_Switch = tuple[str, Any, Any, Values]
"""A key, its value, another one, and the keys to record that with."""


def _add_switched(
    program: Program, full: Values, switches: Sequence[_Switch], *, width: str
) -> Iterator[str]:
    """Add a variant for each switch that is turned, and for each two; yield those that fit none."""
    flags = [row for row in switches if type(row[1]) is bool]
    unfit = set[str]()
    for rows in [*((row,) for row in switches), *combinations(flags, 2)]:
        if unfit & {key for key, *_ in rows}:
            continue
        own_keys = full | {k: v for *_, changed in rows for k, v in changed.items()}
        try:
            other, _ = _layer_of(own_keys, width=width)
        except UnfitError:  # StableLM's norms, one for each head
            unfit |= {key for key, *_ in rows}
            continue
        except VramBudgetError:  # Phi's norms of heads take no other width
            other, _ = _layer_of(own_keys, width="square")
        other.when = program.when | {key: [instead] for key, _, instead, _ in rows}
        program.variants.append(other.variant())
    yield from unfit


def _usual(config: Any, own: Values, names: Mapping[str, str]) -> Values:
    """Return the keys that types share, with this type's defaults."""
    called = {name: key for key, name in names.items()}
    found = {
        k: getattr(type(config), called.get(k, k), own[k])
        for k in FIELDS
        if k in own and (own[k], k) != (None, "num_experts_per_tok")
    }
    if "intermediate_size" not in found:  # all layers have experts, as Solar's
        found["intermediate_size"] = found["moe_intermediate_size"]
    return found


def _layer_of(
    full: Values, *, width: str, body: Mapping[str, bool] | None = None
) -> tuple[Program, Probe]:
    """Return the program of a layer with these keys, or of its body; and its first recording."""
    probes = [
        _probe(_turned(full, at, body), sizes, _PRECISIONS.get(at, "bf16"), width=width, body=body)
        for at, sizes in enumerate(_SIZES)
    ]
    if body is not None:
        own_cut = cut_eager if "eager" in body else cut_body
        return own_cut(program_of(probes, RecordedModel()), probes[0]), probes[0]
    other = _probe({**full, "hidden_act": "relu"}, _SIZES[0], "bf16", width=width)
    changed = changed_operations(
        probes[0].recording, other.recording, "elementwise.gelu", "elementwise.relu"
    )
    model = RecordedModel(activations=dict.fromkeys(changed, "hidden_act"))
    if _JITTER in full:
        without = _probe({**full, _JITTER: 0.0}, _SIZES[0], "bf16", width=width)
        given = inserted(probes[0].recording, without.recording)
        model.given = dict.fromkeys(given or (), _JITTER)
    program = cut(program_of(probes, model), probes[0], has_body=full["model_type"] in BODIES)
    return program, probes[0]


def _turned(full: Values, at: int, body: Any = None) -> Values:
    """Return keys with a recording's own sizes of experts, and another share of a head rotated."""
    own = _of_type(full) | (_OF_BODIES if body is not None else {})
    turned = {k: sizes[at] for k, sizes in own.items() if full.get(k) is not None}
    share = full.get("partial_rotary_factor")
    if share is not None and not at % 4:
        turned["partial_rotary_factor"] = share * (1.5 if 2 * share >= 1 else 2)  # of even width
    return full | turned


_OF_NO_LAYER = ("classif", "summary", "layerdrop")


def _is_rate(key: str) -> bool:
    return ("drop" in key or "softcap" in key) and not key.startswith(_OF_NO_LAYER)


def _switches(full: Values, own: Values, base: Probe, *, width: str) -> Iterator[_Switch]:
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


def _deciding(full: Values, own: Values, base: Probe, *, width: str) -> Iterator[str]:
    """Yield the keys with which a layer does something else: they have to be as they were."""
    as_base = kinds_of(base.recording), _shapes_in(base)
    for key in undeclared(full, own, base):
        if (value := another(own[key])) is None:
            yield key
            continue
        try:
            other = _probe({**full, key: value}, _SIZES[0], "bf16", width=width)
        except VramBudgetError:
            yield key
            continue
        if (kinds_of(other.recording), _shapes_in(other)) != as_base:
            yield key


def _sizes_of(sizes: Sequence[int], *, width: str) -> dict[str, int]:
    found = dict(zip(_NAMES, sizes, strict=True))
    if width == "square":
        found["hidden_size"] = found["num_attention_heads"] * found["head_dim"]
    elif width == "shared":
        found["hidden_size"] += -found["hidden_size"] % found["num_attention_heads"]
    return found


def _accepts(full: Values, width: str) -> bool:
    """Return whether the type takes this width: all but "square" have keys for that of heads."""
    heads, kv_heads, head_dim, *others = _SIZES[0]
    wide = heads, kv_heads, 2 * head_dim, *others
    try:
        found = [_probe(full, sizes, "bf16", width=width) for sizes in (_SIZES[0], wide)]
    except VramBudgetError:
        return False
    plain, widened = (probe.recording.facts["parameters"] for probe in found)
    return width == "square" or plain != widened or _LATENT in full


def _probe(
    full: Values,
    sizes: Sequence[int],
    precision: str,
    *,
    width: str,
    body: Mapping[str, bool] | None = None,
) -> Probe:
    own_sizes = _of_type(full) | (_OF_BODIES if body is not None else {})
    found = _sizes_of(sizes, width=width) | {k: full[k] for k in own_sizes if k in full}
    config = transformers.AutoConfig.for_model(full["model_type"])
    own = config.to_dict()
    called = {name: key for key, name in other_names(config, own).items()}
    if _LATENT in full:
        del found["head_dim"]  # its heads have other widths
        found |= widths_of(found)
    if full.get("new_decoder_architecture") is False or _LATENT in full:
        found["num_key_value_heads"] = found["num_attention_heads"]
    if "new_decoder_architecture" in full:
        found["heads_per_group"] = found["num_attention_heads"] // found["num_key_value_heads"]
    no_keys = {"batch", "length", "rows", "heads_per_group", "cached", *WIDTHS}
    no_keys |= {"head_dim"} if width == "square" and "head_dim" not in own else set()
    sizes_of = {k: v for k, v in found.items() if k not in no_keys}
    of_job = {"cached", "attention"}
    keys = {called.get(k, k): v for k, v in {**full, **sizes_of}.items() if k not in of_job}
    job = {"batch": found["batch"], "block": found["length"], "precision": precision}
    job |= {"task": "causal-lm", "use_cache": False, "attention": full.get("attention", "sdpa")}
    past = found.get("cached", found["length"]) - found["length"]
    with steps_for(full["model_type"], found["rows"], past, **(body or {})) as heard:
        made = recording(keys, frozenset(map(called.get, sizes_of, sizes_of)), **job)
    if _LATENT not in full:  # a key of its own
        found["rotary_width"] = heard.facts.get("rotary_width", 0)
    made.facts |= {
        "keys": full,
        "loss": None,
        "outputs": [heard.facts["hidden"]],
        "tables": heard.facts.get("tables"),
        "positions": made.facts["positions"] if body is not None else None,
        "has_half_tables": heard.facts.get("has_half_tables", False),
        **{k: x for k, x in heard.facts.items() if k in {"position_ids", "attention_mask"}},
    }
    return Probe(found, precision, made)


def _biases_of(base: Probe, key: str, *, width: str) -> list[str]:
    """Return the modules of a layer that have no bias where a key says so."""
    full = {**base.recording.facts["keys"], key: False}
    without = _probe(full, _SIZES[0], "bf16", width=width)
    gone = _parameters_in(layer_in(base), base) - _parameters_in(layer_in(base), without)
    return [name.removesuffix(".bias") for name in gone]


def _shapes_in(probe: Probe) -> list[Any]:
    layer, rows = layer_in(probe), probe.recording.facts["parameters"]
    return [(name, [*map(int, shape)]) for name, _, shape, *_ in rows if is_in(name, layer)]


def _parameters_in(layer: str, probe: Probe) -> set[str]:
    names = (name for name, *_ in probe.recording.facts["parameters"])
    return {name[len(layer) + 1 :] for name in names if is_in(name, layer)}


if __name__ == "__main__":
    for named in sys.argv[1:]:
        text = written(record_decoder(named))
        (RECORDED / f"{named}.program").write_text(text, encoding="utf-8")
