"""Records of generation and of forward passes, in the words of the script that measured them.

    kind         generate | forward          decoding     greedy | sample | beam
    prompt, new  tokens                      cache        dynamic | static | none ...
    chunk        of the prompt               num_return   answers to each prompt
    auto         the class of transformers   grad         no_grad | inference_mode | grad

`generate` runs without gradients whatever `grad` says. What else a record may ask for is refused by
name: a second call, loading, pipelines.
"""

from collections.abc import Mapping
from typing import Any

from vrambudget.config.settings import show
from vrambudget.errors import NotModelledError

KEYS = frozenset({"kind", "decoding", "chunk", "auto", "grad", "repeat", "timeout", "mask"})
"""Keys that such records have besides those of a job."""

_MODES = {"generate": "generate", "forward": "forward"}
_TASKS = {name: name for name in ("causal-lm", "seq2seq-lm", "seq-cls")} | {"model": "embed"}
_RENAMED = {"chunk": "prefill_chunk", "repeat": "calls"}

_ENCODERS = frozenset({"bert", "roberta", "distilbert"})


def is_inference(record: Mapping[str, Any]) -> bool:
    """Whether a record is in these words."""
    return "kind" in record


def fields_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's fields that say what the record's own words say.

    Raises NotModelledError for what no job can say.
    """
    kind, auto = record["kind"], record.get("auto", "causal-lm")
    if not isinstance(kind, str) or kind not in _MODES:
        raise NotModelledError(f"a record of kind {show(kind)} is not modelled")
    if not isinstance(auto, str) or auto not in _TASKS:
        raise NotModelledError(f"generation with auto {show(auto)} is not modelled")
    fields: dict[str, Any] = {"mode": _MODES[kind], "task": _TASKS[auto]}
    fields |= {name: record[key] for key, name in _RENAMED.items() if key in record}
    if kind == "forward":
        if record.get("padding", "none") != "none" or _is_encoder(record.get("model")):
            fields["causal_mask"] = "built"  # its script answers for decoders; zeros say padding
        return fields | {
            "block": record["prompt"],
            "padding": "none",  # of prompts to be continued; here the masks say it
            "attention_mask": "ones" if record.get("mask", True) else "none",
            "use_cache": record.get("use_cache", auto != "causal-lm"),
            "with_grad": record.get("grad") == "grad",
        }
    if auto == "seq2seq-lm":
        fields["causal_mask"] = "built"  # of the encoder's states: zeros say padding
    fields["sample"] = record.get("decoding") == "sample"
    return fields


def _is_encoder(model: object) -> bool:
    return isinstance(model, Mapping) and model.get("model_type") in _ENCODERS
