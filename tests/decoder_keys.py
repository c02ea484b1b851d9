"""Which keys of a decoder's configuration decide what its layers do: of all, or of each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from vrambudget.config.model_config import HARMLESS_VALUES, IGNORED_KEYS
from vrambudget.program.form import Program, Row
from vrambudget.recording.casts import home_of
from vrambudget.recording.keys import Values
from vrambudget.recording.merging import UnfitError
from vrambudget.recording.models import outermost
from vrambudget.recording.programs import Probe

FIELDS = (
    *("pad_token_id", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act"),
    *("max_position_embeddings", "attention_dropout", "tie_word_embeddings"),
    *("partial_rotary_factor", "use_bidirectional_attention", "sliding_window"),
    *("use_sliding_window", "max_window_layers", "layer_types", "sliding_window_pattern"),
    *("no_rope_layers", "no_rope_layer_interval", "num_local_experts", "num_experts"),
    *("num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"),
    *("word_embed_proj_dim", "remove_final_layer_norm", "num_ln_in_parallel_attn"),
    *("new_decoder_architecture", "multi_query", "parallel_attn", "alibi"),
    *("decoder_sparse_step", "mlp_only_layers", "output_router_logits", "router_jitter_noise"),
    *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "mlp_layer_types"),
)
FOLLOWED = {
    "gemma2": ("4.57",),
    **dict.fromkeys(("gemma3_text", "granite", "olmo2", "smollm3", "starcoder2"), ("5.23", "5.24")),
    **dict.fromkeys(("gemma", "llama", "mistral", "phi3"), ("4.57", "5.23", "5.24")),
    **dict.fromkeys(("gpt2", "gpt_neox", "opt", "qwen2", "qwen3"), ("4.57", "5.23", "5.24")),
}
"""Further versions of transformers in which kept records equal a type's layer."""


def by_layer(own: Values) -> Values:
    """Return what keys that name something for each layer say of one: sight of all, positions."""
    layers = own["num_hidden_layers"]
    listed = {k: v for k, v in own.items() if isinstance(v, list) and len(v) == layers}
    usual = {"layer_types": "full_attention", "mlp_layer_types": "sparse"}
    return {key: usual.get(key, 1) for key in listed}


_OTHERS = dict.fromkeys(("hidden_activation", "activation_function", "activation"), "hidden_act")
_OTHERS |= dict.fromkeys(("ffn_dim", "n_inner", "ffn_hidden_size"), "intermediate_size")
_OTHERS["num_kv_heads"] = "num_key_value_heads"
_OTHERS |= dict.fromkeys(("num_shared_experts", "moe_num_shared_experts"), "n_shared_experts")
_OF_FILES = {"gpt_neox": {"rotary_pct": "partial_rotary_factor"}}


def other_names(config: Any, own: Values) -> dict[str, str]:
    """Return keys that are called otherwise here: those of several types have one name."""
    names = {f"_{key}": key for key in FIELDS} | _OTHERS
    names |= {key: name for name, key in config.attribute_map.items() if name in FIELDS}
    found = {k: n for k, n in names.items() if {k} <= own.keys() - {*FIELDS} and n not in own}
    return found | _OF_FILES.get(config.model_type, {})


_NAMES = {"model": "model", "layers": "layers", "embed_tokens": "embed_tokens", "norm": "norm"}
"""Modules as Llama calls them."""


def layer_in(probe: Probe) -> str:
    """Return the path of the second layer: the first may do other things."""
    return f"{outermost(probe.recording.facts['stacks'])[0]}.1"


_BY_OTHER_RULES = {"max_window_layers", "no_rope_layers"}


def kinds_of_layers(own: Values, base: Probe) -> Values:
    """Return which layers see a window, and whether positions differ between kinds."""
    if "layer_types" not in own or "sliding_window" not in own or own.keys() & _BY_OTHER_RULES:
        return {}
    kinds = own["layer_types"]
    full = [i for i, kind in enumerate(kinds, 1) if kind == "full_attention"]
    every = full[1] - full[0] if full else 0  # none sees all
    if full != [i for i in range(1, len(kinds) + 1) if every and (i - full[0]) % every == 0]:
        raise UnfitError(f"layer_types are not as usual: {kinds}")
    buffers = {name for name, *_ in base.recording.facts["buffers"]}
    return {
        "full_every": every,
        **({"full_first": full[0]} if full and full[0] != every else {}),
        "rotates_by_kind": "model.rotary_emb.full_attention_inv_freq" in buffers,
    }


def around_layers(program: Program, base: Probe) -> Values:
    """Return what is unusual around the layers: a bias of the head, what is made first."""
    facts, names = base.recording.facts, program.source.get("names", {})
    places = {name: place for name, place, *_ in (*facts["parameters"], *facts["buffers"])}
    model = layer_in(base).rpartition(".")[0].rpartition(".")[0]
    norm = places.get(f"{model}.{names.get('norm', 'norm')}.weight", 0)  # OLMo's has no weight
    rotary = min((x for name, x in places.items() if ".rotary_emb." in name), default=norm)
    found: Values = {"head_bias": "lm_head.bias" in places, "rotary_first": rotary < norm}
    return {key: True for key, value in found.items() if value}


def without_usual(model_type: str, own: Values, base: Probe) -> Values:
    """Return how a type attends, makes masks and rotates, where that is not as usual."""
    facts, found = base.recording.facts, dict[str, Any]()
    if not vars(home_of(model_type))[facts["class"]]._supports_sdpa:  # noqa: SLF001 - its own
        found["attentions"] = ["eager"]
    if model_type not in BODIES and not facts["masks_by_position"]:
        found["masks_by_position"] = False
    if facts["has_half_tables"]:
        found["has_half_tables"] = True
    rope = own.get("rope_parameters", {}).get("rope_type", "default")
    return found | ({"usual_rope": {"rope_type": rope}} if rope != "default" else {})


def names_of(model: str, layers: str, norm: str, base: Probe) -> Values:
    """Return what modules are called that are called otherwise than Llama's."""
    first = base.recording.facts["parameters"][0][0].removeprefix(f"{model}.")
    found = {
        "model": model.partition(".")[0],
        "layers": layers,
        "embed_tokens": first.rpartition(".")[0],
    }
    found = {k: v for k, v in {**found, "norm": norm}.items() if v != _NAMES[k]}
    return {"names": found} if found else {}


_BOTH = (True, False)


def _falcons() -> Iterator[tuple[Values, Values]]:
    """Yield what Falcon's keys say of a layer that is recorded, and the keys."""
    names = ("new_decoder_architecture", "multi_query", "parallel_attn")
    forms: list[tuple[Any, ...]] = [
        (False, *form, None) for form in product((True, False), repeat=2)
    ]
    forms += [(True, True, True, None), (True, True, True, 1)]
    for (*form, norms), alibi, bias in product(forms, (False, True), (False, True)):
        keys: Values = {**dict(zip(names, form, strict=True)), "alibi": alibi, "bias": bias}
        when: Values = {key: [value] for key, value in keys.items()}
        if form[0]:
            when |= {"multi_query": [True, False], "has_two_norms": [norms is None]}
            keys["num_ln_in_parallel_attn"] = norms
        yield when, keys


_FIRST_DENSE: Values = {"first_k_dense_replace": (0, 3)}
_BY_LAYER: Values = {"mlp_layer_types": (["sparse"] * 3, ["dense"] * 3)}


def _with_dense(
    attention: Values | None = None,
    experts: Values | None = None,
    *,
    by: Values = _FIRST_DENSE,
) -> Iterator[tuple[Values, Values]]:
    """Yield what keys say of layers with experts and without, by the values that some may have.

    `by`: the key that says which layers have experts, where all have and where none has.
    """
    for at, mlp in enumerate(("experts", "dense")):
        own = (attention or {}) | (experts or {} if mlp == "experts" else {})
        for values in product(*own.values()):
            said = dict(zip(own, values, strict=True))
            when = {key: [value] for key, value in said.items()}
            yield {"mlp": [mlp], **when}, {**said, **{key: ways[at] for key, ways in by.items()}}


def _latent(*ways: Values, **given: Values) -> Iterator[tuple[Values, Values]]:
    """Yield the same of layers with latent attention, whose queries may have a latent, too."""
    for (when, keys), queries in product(_with_dense(*ways, **given), _BOTH):
        own = {} if queries else {"q_lora_rank": None}
        yield {**when, "compresses_queries": [queries]}, keys | own


FORMS: Mapping[str, Callable[[], Iterator[tuple[Values, Values]]]] = {
    "falcon": _falcons,
    "deepseek_v2": partial(_latent, experts={"topk_method": ("greedy", "group_limited_greedy")}),
    "deepseek_v3": partial(_latent, {"rope_interleave": _BOTH}, {"norm_topk_prob": _BOTH}),
    "glm4_moe": partial(_with_dense, {"use_qk_norm": _BOTH}, {"norm_topk_prob": _BOTH}),
    "hy_v3": partial(_with_dense, by=_BY_LAYER),
    "glm4_moe_lite": partial(
        _latent, {"rope_interleave": _BOTH}, {"norm_topk_prob": _BOTH}, by=_BY_LAYER
    ),
}
"""Types with several keys that decide together what a layer does."""


EAGER = {"biogpt", "gpt2", "gpt_oss"}
"""Types with their own way to attend by single operations."""

_ALONE: Values = {}
BODIES: Mapping[str, Callable[[], Iterator[tuple[Values, Values]]]] = {
    **dict.fromkeys(("biogpt",), lambda: iter([(_ALONE, _ALONE)])),
}
"""Types around whose layers stands what Llama has not, and the keys that decide it."""


def changes(full: Values, own: Values, base: Probe) -> Iterator[tuple[str, Any, Any, Values]]:
    """Yield a key, its value, another one, and the keys to record that with."""
    read = {key for _, key in base.recording.read}
    flags = {k for k, v in own.items() if type(v) is bool and not k.startswith("output_")}
    for key in sorted((read & flags) - full.keys() - HARMLESS_VALUES.keys()):
        yield key, own[key], not own[key], {key: not own[key]}
    for key, usual in by_layer(own).items():
        for value in sorted({*own[key]} - {usual}):
            yield key, usual, value, {key: [value] * len(full[key])}
    if "sliding_window" in own and "layer_types" in full:
        yield "has_window", True, False, {"sliding_window": None}


_ELSEWHERE = ("rope_parameters", "router_aux_loss_coef", "qk_head_dim", "problem_type")
"""Keys that have rules elsewhere, or follow from others."""


def another(value: Any) -> Any:
    """Return a number that is another one; None for what is no number."""
    if type(value) is int:
        return value + 1
    return value * 1.5 + 0.125 if type(value) is float else None


def undeclared(full: Values, own: Values, base: Probe) -> list[str]:
    """Return the keys that the code read, and of which nothing is declared."""
    read = {key for _, key in base.recording.read} & own.keys()
    plain = {key for key in read if type(own[key]) is not bool}
    known = {*FIELDS, *_ELSEWHERE, *IGNORED_KEYS, *HARMLESS_VALUES}
    return sorted(plain - full.keys() - known)


def before_layers(rows: Sequence[tuple[str, Row]], model: str) -> Values:
    """Return what embeddings go through, and of dropout the key and whether they are held."""
    until = next(at for at, (_, (word, _)) in enumerate(rows) if word == "enter")
    found: Values = {"entered": [*scaled(rows, model, before="enter")]}
    names = [v[0] if word == "op" else None for _, (word, v) in rows[:until]]
    if found["entered"] and "mask" in names and found["entered"][0] in names[names.index("mask") :]:
        found["enters_after_masks"] = True
    ended = {value for _, (word, value) in rows[:until] if word == "del"}
    for path, (word, value) in rows[:until]:
        if word == "op" and value[0] == "dropout.dropout":
            x, rate = value[2][:2]
            key, name = rate.removeprefix("%"), path.removeprefix(model).removeprefix(".")
            found["drops"] = {"key": key, "holds": x not in ended, "module": name}
    return found


_OF_ONE = ("elementwise.mul", "elementwise.tanh")


def scaled(rows: Sequence[tuple[str, Row]], path: str, *, before: str) -> Iterator[str]:
    """Yield what a module does to what it looked up, or to logits: operations of one tensor."""
    for own, (word, value) in rows:
        if word == before:
            return
        if own == path and word == "op" and value[0].startswith(_OF_ONE):
            yield value[0]
