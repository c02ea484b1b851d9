"""What a program says of a configuration's keys: which are sizes, and how any other must be.

A key that the program leaves free is a size; a rate of dropout may be any; an activation is one of
those that have a rule. Any other key must be as it was recorded.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vrambudget.auto_classes import DROPOUT_FIELDS
from vrambudget.config.job import Job
from vrambudget.config.model_config import (
    HARMLESS_VALUES,
    ModelConfig,
    slips_of,
)
from vrambudget.config.settings import mistakes, show
from vrambudget.errors import NotModelledError, VramBudgetError, did_you_mean
from vrambudget.expressions import LARGEST
from vrambudget.expressions import value as size_of
from vrambudget.ops.elementwise import ACTIVATIONS
from vrambudget.program.form import Program, Variant
from vrambudget.program.guards import all_known, check_guards, derive
from vrambudget.program.unfold import RecordedStack

_MISSING = object()
TRACED = (
    "its own code is traced if torch and transformers are installed:"
    " pip install 'vrambudget[torch]'"
)


def bound_keys(  # noqa: C901 - one rule a kind of key
    program: Program, keys: Mapping[str, Any]
) -> dict[str, int]:
    """Return a configuration's sizes. Raises NotModelledError for one that was not recorded."""
    named = _standard(keys, program.keys)
    sizes: dict[str, int] = {}
    waiting: dict[str, str] = {}
    for key, rule in program.keys.items():
        if key == "attribute_map":
            continue
        value = _value(named, key, rule)
        if rule.get("free"):
            if isinstance(value, str) and value[:1] == "=":
                waiting[key] = value[1:]
            elif type(value) is not int or not 0 <= value <= LARGEST:
                came = "missing" if value is _MISSING else show(value)
                raise NotModelledError(
                    f"{key} is {came}; the program takes a whole number", hint=TRACED
                )
            else:
                sizes[key] = value
        elif "layers" not in rule:
            hold(key, value, rule)
    for key, text in waiting.items():
        if not all_known(text, sizes):
            raise NotModelledError(f"{key} is missing: it follows from {text}", hint=TRACED)
        sizes[key] = size_of(text, sizes)
    for key, rule in program.keys.items():
        if "layers" in rule and key in named:
            _hold_layers(program, key, rule["layers"], named[key], sizes)
    derive(program, sizes)
    check_guards(program, sizes)
    for row in program.stacks:
        RecordedStack(row, sizes, program)  # raises where so many layers were not recorded
    return sizes


def _value(named: Mapping[str, Any], key: str, rule: Mapping[str, Any]) -> Any:
    """Return what a configuration says of a key, like "outer.inner", or what holds without."""
    found: Any = named
    for part in key.split("."):
        found = found.get(part, _MISSING) if isinstance(found, Mapping) else _MISSING
    if found is _MISSING or (found is None and rule.get("free")):
        return rule.get("default", _MISSING)
    is_square = isinstance(found, list | tuple) and len(found) == 2 and found[0] == found[1]  # noqa: PLR2004
    return found[0] if is_square and rule.get("free") else found  # an image's height and width


def _holds_any(key: str, value: Any, rule: Mapping[str, Any]) -> bool:
    """Return whether a key may have several values, and this is one. Raises for another one."""
    if rule.get("rate") and "is" not in rule:
        if (value is None and "else" in rule) or _is_probability(value):
            return True
        raise VramBudgetError(f"{key} is {show(value)}; it should be a number from 0 to 1")
    if "activation" in rule:
        if value in ACTIVATIONS:
            return True
        known = ", ".join(ACTIVATIONS)
        raise NotModelledError(f"{key} is {show(value)}; there are {known}", hint=TRACED)
    if "absent" in rule:
        if value is _MISSING or value in rule["absent"]:
            return True
        raise NotModelledError(f"{key} is {show(value)}; it was recorded without", hint=TRACED)
    if "in" in rule:
        if any(value is known for known in rule["in"]):
            return True
        raise VramBudgetError(f"{key} is {show(value)}; it should be true or false")
    return False


def hold(key: str, value: Any, rule: Mapping[str, Any]) -> None:
    """Raise NotModelledError where a key is not as it was recorded."""
    if _holds_any(key, value, rule):
        return
    if rule.get("nonzero"):
        if value is _MISSING or (isinstance(value, int | float) and value):
            return
        raise NotModelledError(f"{key} is {show(value)}; it was recorded above 0", hint=TRACED)
    if key == "pos_att_type" and isinstance(value, str | list):  # in any order (DebertaV2Config)
        value = sorted(value.lower().split("|") if isinstance(value, str) else map(str, value))
        rule = {"is": sorted(rule["is"]) if isinstance(rule["is"], list) else rule["is"]}
    if value is not _MISSING and value == rule["is"] and type(value) is not bool:
        return
    if type(value) is bool and value is rule["is"]:
        return
    came = "missing" if value is _MISSING else show(value)
    raise NotModelledError(f"{key} is {came}; it was recorded as {show(rule['is'])}", hint=TRACED)


def _is_probability(value: Any) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and 0 <= value <= 1


def _hold_layers(
    program: Program, key: str, recorded: list[Any], given: Any, sizes: Mapping[str, int]
) -> None:
    """Raise NotModelledError where kinds of layers do not recur as they were recorded."""
    for _, depth, first, period, layers, _ in program.stacks:
        if depth is None or layers != len(recorded) or period is None:
            continue
        cycle = recorded[first : first + period]
        rounds = max((sizes[depth] - first - 1) // period, 0)
        wanted = [*recorded[:first], *(cycle * rounds), recorded[-1]]
        if given == wanted:
            return
    if given != recorded:
        raise NotModelledError(
            f"{key} names other layers than were recorded: {show(recorded)} and so on", hint=TRACED
        )


def _standard(keys: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with transformers' own names for its keys.

    Source: transformers/configuration_utils.py (attribute_map), modeling_rope_utils.py
    (RotaryEmbeddingConfigMixin.convert_rope_params_to_dict), 5.17.
    """
    own = known.get("attribute_map", {})
    named = {own.get(key, key): value for key, value in keys.items()}
    if "num_labels" in known and isinstance(keys.get("id2label"), Mapping):
        named.setdefault("num_labels", len(keys["id2label"]))
    if "dense_act_fn" in known and "feed_forward_proj" in named:
        named |= _of_projection(named["feed_forward_proj"])
    if "scale_decoder_outputs" in known:
        named.setdefault("scale_decoder_outputs", named.get("tie_word_embeddings") is not False)
    of_rope = [key for key in known if key.startswith("rope_parameters.")]
    if of_rope and "rope_parameters" not in named and {"rope_scaling", "rope_theta"} & set(named):
        scaling = named.get("rope_scaling") or {}
        if not isinstance(scaling, Mapping):
            raise VramBudgetError(f"rope_scaling is {show(scaling)}; it should be an object")
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        named["rope_parameters"] = {
            "rope_theta": named.get("rope_theta", 10000.0),
            **scaling,
            "rope_type": kind,
        }
    return named


def _of_projection(projection: Any) -> dict[str, Any]:
    """Return what T5's key of two words comes to (T5Config.__post_init__, 5.17)."""
    gated, dash, activation = str(projection).rpartition("-")
    if activation not in ACTIVATIONS or (dash and gated != "gated"):
        known = ", ".join(f"{name}, gated-{name}" for name in sorted(ACTIVATIONS))
        raise VramBudgetError(
            f"feed_forward_proj is {show(projection)}; it should be one of {known}"
        )
    activation = "gelu_new" if projection == "gated-gelu" else activation
    return {"is_gated_act": bool(dash), "dense_act_fn": activation}


def said_by(program: Program, keys: Mapping[str, Any], job: Job | None) -> dict[str, Any]:
    """Return rates of dropout, activations and ways of building, by key."""
    named = _standard(keys, program.keys)
    found: dict[str, Any] = {}
    for key, rule in program.keys.items():
        if "rate" in rule or "activation" in rule or "in" in rule:
            found[key] = _value(named, key, rule)
    if job is not None and job.dropout is not None:
        found |= {key: job.dropout for key in DROPOUT_FIELDS if key in found}
    for key, rule in program.keys.items():
        if "else" in rule and found[key] is None:
            found[key] = found[rule["else"]]
    return found


_SPELLINGS = ("model_type", "num_labels", "rope_scaling", "rope_theta")
"""Keys that files have besides those of a type's configuration."""


def unknown_in(keys: Mapping[str, Any], programs: Sequence[Variant]) -> tuple[str, ...]:
    """Return the keys that the recorded class has not. Raises VramBudgetError for a slip."""
    first = programs[0].head
    others = set(first.source.get("others", keys)) - HARMLESS_VALUES.keys()
    known = {*others, *first.keys.get("attribute_map", ()), *_SPELLINGS}
    unknown = ModelConfig.others(keys, known | _roots(first))
    if not unknown:  # most files end here: further programs are not read
        return ()
    known |= {root for each in programs for root in _roots(each.head)}
    unknown &= ModelConfig.others(keys, known)
    if slips := slips_of(unknown, known):
        hint = did_you_mean(min(slips), known)
        raise mistakes([f"{key} is not known" for key in sorted(slips)], None, hint)
    return tuple(sorted(unknown))


def _roots(program: Program) -> set[str]:
    return {key.partition(".")[0] for key in program.keys} - HARMLESS_VALUES.keys()


def skipped_at_random(keys: Mapping[str, Any], source: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is assumed of layers that keys of a model let be skipped at random."""
    drops = [k for k in keys if k in source.get("others", ()) and k.endswith("layerdrop")]
    if drops := [k for k in drops if keys[k]]:
        yield f"{' and '.join(drops)}: layers skipped at random are assumed never to be skipped"
