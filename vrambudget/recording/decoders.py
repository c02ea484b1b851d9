"""A decoder's layer as a program: what a type's own code does between what all types share.

    recorded   a layer, the norm behind the last one; what embeddings and logits are multiplied by
    a step     masks, rotary tables, caches, attention and experts, which transformers has once for
               all decoders: models.parts has their rules, for training and for generation

A layer is recorded at several sizes, with positions of one row and of every row, with all biases
that its keys can give it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import transformers
from transformers.models.auto import modeling_auto

from vrambudget.config.model_config import HARMLESS_VALUES
from vrambudget.config.versions import installed_version
from vrambudget.errors import VramBudgetError
from vrambudget.program.form import Program, Row, with_paths
from vrambudget.program.unfold import makes, reads, renamed
from vrambudget.recording.decoder_keys import (
    FIELDS,
    FOLLOWED,
    around_layers,
    before_layers,
    by_layer,
    changes,
    kinds_of_layers,
    other_names,
    scaled,
)
from vrambudget.recording.decoder_steps import steps_for
from vrambudget.recording.keys import OF_FILES, Values
from vrambudget.recording.merging import UnfitError
from vrambudget.recording.programs import Model, Probe, program_of
from vrambudget.recording.rows import changed_operations, inserted, kinds_of
from vrambudget.recording.runs import RATES, recording

_LAYER = "model.layers.1"
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
    biases = {key: value for key, value in own.items() if value in (0, 1) and key.endswith("bias")}
    rates = {key: value for key, value in own.items() if "drop" in key or "softcap" in key}
    activation = "hidden_act" if "hidden_act" in own else "hidden_activation"
    full: Values = {
        "model_type": model_type,
        "num_hidden_layers": 3,
        "vocab_size": 211,
        "pad_token_id": 0,
        **dict.fromkeys(biases, True),
        **dict(zip(rates, RATES, strict=False)),
        activation: "gelu",
        **{key: sizes[0] for key, sizes in _OF_EXPERTS.items() if key in own},
        **{key: 0.01 for key in own if key == _JITTER},
    }
    full |= {key: [value] * full["num_hidden_layers"] for key, value in by_layer(own).items()}
    share = own.get("rope_parameters", {}).get("partial_rotary_factor")
    if share is not None:
        full["partial_rotary_factor"] = share if share < 1 else 0.5  # and a rest that is not
        own["partial_rotary_factor"] = share
    width = next(way for way in _WIDTHS if _accepts(full, _SIZES[0], way))
    program, base = _layer_of(full, width=width)
    switches = [*_switches(full, own, base, width=width)]
    program.when = {key: [value] for key, value, *_ in switches}
    if "mlp_only_layers" in own:
        program.when["mlp"] = ["experts"]
    for key, _, instead, changed in switches:
        try:
            other, _ = _layer_of({**full, **changed}, width=width)
        except VramBudgetError:  # Phi's norms of heads take no other width
            other, _ = _layer_of({**full, **changed}, width="square")
        other.when = program.when | {key: [instead]}
        program.variants.append(other.variant())
    if "mlp_only_layers" in own:
        dense, _ = _layer_of({**full, "mlp_only_layers": [0, 1, 2]}, width=width)
        dense.when = {"mlp": ["dense"]}
        program.variants.append(dense.variant())
    aliases = {**config.attribute_map, **other_names(own)}
    named = {**own, **{name: own[key] for key, name in aliases.items() if key in own}}
    usual = {key: getattr(type(config), key, named[key]) for key in FIELDS if key in named}
    usual |= rates | biases | {key: value for key, value, *_ in switches if own.get(key) is value}
    buffers = {name for name, *_ in base.recording.facts["buffers"]}
    heads = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    program.source |= {
        "model_type": model_type,
        "fields": usual,
        "biases": {key: _biases_of(full, key, base, width=width) for key in biases},
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
    activation = next(key for key in ("hidden_act", "hidden_activation") if key in full)
    other = _probe({**full, activation: "relu"}, _SIZES[0], "bf16", width=width)
    changed = changed_operations(
        probes[0].recording, other.recording, "elementwise.gelu", "elementwise.relu"
    )
    model = Model(activations=dict.fromkeys(changed, "hidden_act"))
    if _JITTER in full:
        without = _probe({**full, _JITTER: 0.0}, _SIZES[0], "bf16", width=width)
        given = inserted(probes[0].recording, without.recording)
        model.given = dict.fromkeys(given or (), _JITTER)
    return _cut(program_of(probes, model)), probes[0]


def _turned(full: Values, at: int) -> Values:
    """Return keys with a recording's own sizes of experts, and another share of a head rotated."""
    turned = {key: sizes[at] for key, sizes in _OF_EXPERTS.items() if key in full}
    share = full.get("partial_rotary_factor")
    if share is not None and not at % 4:
        turned["partial_rotary_factor"] = share * 1.5
    return full | turned


def _switches(
    full: Values, own: Values, base: Probe, *, width: str
) -> Iterator[tuple[str, Any, Any, Values]]:
    """Yield those changes of keys that decide what a layer does."""
    for key, usual, instead, changed in changes(full, own, base):
        try:
            other = _probe({**full, **changed}, _SIZES[0], "bf16", width=width)
        except VramBudgetError:
            continue
        a, b = (
            [row for row in kinds_of(probe.recording) if _is_in(row[0], _LAYER)]
            for probe in (base, other)
        )
        if a != b:
            yield key, usual, instead, changed


def _sizes_of(sizes: Sequence[int], *, width: str) -> dict[str, int]:
    found = dict(zip(_NAMES, sizes, strict=True))
    if width == "square":
        found["hidden_size"] = found["num_attention_heads"] * found["head_dim"]
    elif width == "shared":
        found["hidden_size"] += -found["hidden_size"] % found["num_attention_heads"]
    return found


def _accepts(full: Values, sizes: Sequence[int], width: str) -> bool:
    """Return whether the type takes this width."""
    try:
        _probe(full, sizes, "bf16", width=width)
    except VramBudgetError:
        return False
    return True


def _probe(full: Values, sizes: Sequence[int], precision: str, *, width: str) -> Probe:
    found = _sizes_of(sizes, width=width) | {k: full[k] for k in _OF_EXPERTS if k in full}
    keys = {k: v for k, v in found.items() if k not in {"batch", "length", "rows"}}
    job = {"batch": found["batch"], "block": found["length"], "precision": precision}
    with steps_for(full["model_type"], found["rows"]) as heard:
        made = recording(
            {**full, **keys}, frozenset(keys), task="causal-lm", use_cache=False, **job
        )
    found["rotary_width"] = heard.facts["rotary_width"]
    made.facts |= {
        "loss": None,
        "outputs": [heard.facts["hidden"]],
        "tables": heard.facts["tables"],
    }
    return Probe(found, precision, made)


def _biases_of(full: Values, key: str, base: Probe, *, width: str) -> list[str]:
    """Return the modules of a layer that have no bias where a key says so."""
    without = _probe({**full, key: False}, _SIZES[0], "bf16", width=width)
    names = [{name for name, *_ in p.recording.facts["parameters"]} for p in (base, without)]
    gone = (n for n in names[0] - names[1] if n.startswith(f"{_LAYER}."))
    return sorted(n.removeprefix(f"{_LAYER}.").removesuffix(".bias") for n in gone)


def _cut(program: Program) -> Program:
    """Return a layer's program of a whole model's, with the norm behind the last layer."""
    rows = [*with_paths(program.code)]
    masks, tables = (
        [n for w, v in program.code if w == "op" and v[0] == k for n in v[1:2]]
        for k in ("mask", "rotary")
    )
    layer = [row for path, row in rows if _is_in(path, _LAYER) and row[0] not in {"enter", "leave"}]
    read = [name for row in layer for name in reads(*row)]
    own = [names for names in masks if names[0] in read]
    if len(own) != 1 or len(tables) != 1:
        raise UnfitError("layers of several kinds are no single program")
    if len(masks) > 1:
        program.source["makes_both_masks"] = True
    (entered,) = (v for path, (w, v) in rows if (w, path) == ("enter", _LAYER))
    (left,) = (v for path, (w, v) in rows if (w, path) == ("leave", _LAYER))
    last = max(at for at, (_, (word, _)) in enumerate(rows) if word == "leave")
    behind = (path for path, _ in rows[last:] if path.startswith("model."))
    home = next(path for path in behind if not path.startswith("model.layers."))
    norm = [row for path, row in rows if _is_in(path, home)]
    made = [name for row in norm for name in makes(*row)]
    (given,) = {name for row in norm for name in reads(*row)} - {*made}
    gone = {value for word, value in norm if word == "del"}
    norm = [row for row in norm if row[0] != "del" or row[1] in made]
    (result,) = [name for name in made if name not in gone]
    code = [
        *(("enter", [entered[0], *tables[0], *own[0]]), *layer, ("leave", left)),
        *(("enter", [given]), *norm, ("leave", [result])),
    ]
    _follow_tables(program, code, tables[0])
    used = {value[0]: None for word, value in code if word == "call"}
    numbers = {old: new for new, old in enumerate(sorted(used))}
    program.effects = [program.effects[old] for old in numbers]
    code = [(w, [numbers[v[0]], *v[1:]] if w == "call" else v) for w, v in code]
    program.source |= {
        **before_layers(rows),
        "logits": [*scaled(rows, "", before="")],
    }
    if home != "model.norm":
        program.source["final_norm"] = home.removeprefix("model.")
    program.code = [_relative(row, home) for row in code]
    program.built = [
        _relative(row, home)
        for row in program.built
        if row[0] in {"module", "weight"} and row[1][0].startswith(f"{_LAYER}.")
    ]
    program.stacks, program.inputs, program.guards, program.result = [], [], [], {}
    return program


def _follow_tables(program: Program, code: Sequence[Row], tables: Sequence[str]) -> None:
    """Let what is made of cos and sin alone have their type: FSDP casts them between layers."""
    known, of_tables, others = {*tables}, set[int](), set[int]()
    for word, value in code:
        if word not in {"op", "call"}:
            continue
        given = {*reads(word, value)}
        is_table = bool(given) and given <= known
        if is_table and (word == "call" or value[0].startswith("shape.")):
            known.update(makes(word, value))
        if word == "call":
            (of_tables if is_table else others).add(value[0])
    for number in of_tables - others:
        program.effects[number] = _retyped(program.effects[number])


def _retyped(value: Any) -> Any:
    if isinstance(value, list):
        return [_retyped(x) for x in value]
    return "~T" if value in {"~float32", "~W"} else value


def _is_in(path: str, module: str) -> bool:
    return f"{path}.".startswith(f"{module}.")


def _relative(row: Row, norm: str) -> Row:
    """Return a row with names as they are in its layer."""
    word, value = row

    def plain(path: str) -> str:
        for module in (_LAYER, norm):
            if _is_in(path, module):
                return path[len(module) + 1 :]
        return path

    if word == "at":
        return word, [plain(value[0]), *value[1:]]
    if word in {"new", "module"}:
        return word, [plain(value[0]), *value[1:]]
    if word == "weight":
        return word, [plain(value[0]), plain(value[1]), *value[2:]]
    return word, renamed(value, {}, plain)
