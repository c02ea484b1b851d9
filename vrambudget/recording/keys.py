"""Keys of a configuration: what they may be instead, and what holds where one is not named."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import transformers

Values = dict[str, Any]

OF_FILES = {
    "gemma": ("hidden_activation",),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3"),
        (
            *("routed_scaling_factor", "scoring_func", "aux_loss_alpha", "seq_aux", "ep_size"),
            *("num_nextn_predict_layers", "num_mtp_layers", "norm_topk_prob", "moe_layer_freq"),
            *("topk_method", "quantization_config"),  # weights count in the job's type
        ),
    ),
    "falcon": ("apply_residual_connection_post_layernorm", "rotary", "rotary_base"),
    "gpt2": ("n_ctx",),
    **dict.fromkeys(("mt5", "t5"), ("n_positions",)),
    "gpt_neox": ("rotary_emb_base",),
    "gpt_oss": (
        *("experts_per_token", "initial_context_length", "swiglu_limit", "quantization_config"),
    ),
    "opt": ("activation_dropout",),
    "phi3": ("attention_bias", "original_max_position_embeddings"),
    "qwen2": ("use_mrope",),
    "gemma2": ("cache_implementation",),
    "gemma3_text": ("cache_implementation", "rope_local_base_freq"),
    "smollm3": ("max_window_layers",),
    "minimax_m2": ("rotary_dim",),
    "modernbert": (
        *("global_rope_theta", "local_rope_theta", "reference_compile"),
        *("repad_logits_with_grad", "sliding_window"),
    ),
    "hunyuan_v1_dense": ("eod_token_id", "use_qk_norm", "use_cla"),
    "starcoder2": ("norm_type", "mlp_type"),
}
"""Keys of published files that a type's own code does not read."""

CONVERTED: dict[str, Values] = {
    "modernbert": {"global_attn_every_n_layers": 3, "rope_scaling": None},
}
"""Keys that a type's class turns into others, as they are where nobody says them."""

TIED: dict[str, dict[str, str]] = {"deberta-v2": {"pooler_hidden_size": "hidden_size"}}
"""Keys that are as large as another one, or the type's code fails."""


SPELT = {"feed_forward_proj"}
"""Keys that others follow from, which the model's code reads (program.keys)."""


def flattened(values: Values, prefix: str = "") -> Values:
    """Return values with the keys of objects in them as "outer.inner"."""
    found: Values = {}
    for key, value in values.items():
        if isinstance(value, dict) and value and all(isinstance(k, str) for k in value):
            found |= flattened(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def nested(values: Values, changed: Values) -> Values:
    """Return what `changed`, with keys like "outer.inner", makes of values: whole objects."""
    found: Values = {}
    for path, value in changed.items():
        key, _, inner = path.partition(".")
        if inner:
            outer: Values = found[key] if key in found else values[key]
            found[key] = {**outer, **nested(outer, {inner: value})}
        else:
            found[key] = value
    return found


def others(value: Any) -> Iterator[Any]:
    """Yield what a key's value may be instead."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        for other in (2 * value, value + value // 2, value // 2, value + 1):
            if other > 0 and other != value:
                yield other
    elif isinstance(value, float):
        yield value * 1.5 if value else 0.125


def choices(model_type: str, key: str) -> tuple[Any, ...]:
    """Return what a key may be, where its class names all values; () for any other."""
    hint = type(transformers.AutoConfig.for_model(model_type)).__annotations__.get(key)
    return get_args(hint) if get_origin(hint) is Literal else ()


class Defaults:
    """What transformers makes of a key that a configuration does not name."""

    def __init__(self, model_type: str, free: list[str]) -> None:
        self._type = model_type
        base = transformers.AutoConfig.for_model(model_type)
        own = {k: getattr(base, k) for k in free if type(getattr(base, k, None)) is int}
        self._cases = [
            {k: v * (2 if k == scale else 1) for k, v in own.items()} for scale in (None, *own)
        ]

    def of(self, key: str) -> Values:
        """Return {"default": value}, an expression "=..." where others decide it, or {}."""
        probes, values = [], []
        for case in self._cases:
            given = {k: v for k, v in case.items() if k != key}
            try:
                made = transformers.AutoConfig.for_model(self._type, **given)
            except Exception:  # noqa: BLE001, S112 - a configuration's own checks raise what they like
                continue
            probes.append(given)
            values.append(_at(made, key))
        if not values:
            return {}
        if all(v == values[0] for v in values):
            first = list(values[0]) if isinstance(values[0], tuple) else values[0]
            return {"default": first} if _is_plain(first) else {}
        if all(type(v) is int for v in values) and len(probes) > 1:
            names = sorted(set.intersection(*(set(p) for p in probes)))
            found = _derived([{n: p[n] for n in names} for p in probes], values)
            if found is not None:
                return {"default": "=" + found}
        return {}


def _at(config: Any, path: str) -> Any:
    """Return a configuration's value by a key like "outer.inner"."""
    found = config
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else getattr(found, key, None)
    return found


def _derived(probes: list[dict[str, int]], values: list[int]) -> str | None:
    """Return a size as another one, a quotient of two, or a multiple; None for anything else."""
    names = list(probes[0])
    for a in names:
        if all(p[a] == v for p, v in zip(probes, values, strict=True)):
            return a
    for a in names:
        for b in names:
            if a != b and all(p[a] // p[b] == v for p, v in zip(probes, values, strict=True)):
                return f"{a}//{b}"
    for a in names:
        factor = values[0] // probes[0][a] if probes[0][a] else 0
        if factor and all(factor * p[a] == v for p, v in zip(probes, values, strict=True)):
            return f"{factor}*{a}"
    return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(x) for x in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(x) for k, x in value.items())
    return value is None or isinstance(value, bool | int | float | str)
