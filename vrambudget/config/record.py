"""The job of a measured record: what its keys mean, and what the gaps between them do."""

from collections.abc import Mapping
from typing import Any

from vrambudget.config.job import ALL_LINEAR, Job


def job_of_record(record: Mapping[str, Any]) -> Job:
    """Return the job of a measured record; gaps are as the measuring loop has them."""
    given = {k: record[k] for k in record if k in Job.model_fields}
    values = {"precision": "fp32", "task": "causal-lm", **given}
    values["mode"] = "eval" if values.get("mode") == "inference" else values.get("mode", "train")
    values["target_len"] = record.get("target")
    for key in ("clip", "lora_rank"):  # 0 means off there
        values[key] = values.get(key) or None
    if values.get("lora_targets") is None:
        values["lora_targets"] = ALL_LINEAR
    model = record.get("model")
    if isinstance(model, Mapping) and "experts_implementation" in model:
        values["experts"] = model["experts_implementation"]
    if _is_nanogpt(model):
        values["dropout"] = values.get("dropout") or 0.0
    versions = record.get("versions") or {}
    values |= {k: versions[k] for k in ("torch", "transformers") if k in versions}
    return Job.parse(values, where=f"record {record.get('id', 'without an id')!r}")


def _is_nanogpt(model: object) -> bool:
    return model == "nanogpt" or (
        isinstance(model, Mapping) and model.get("model_type") == "nanogpt"
    )
