"""Records of jobs: files of them, a line of JSON each; which keys they may have, what these mean.

Keys are the job's own, and what was found when it was run. A record of something that a job cannot
say (a parallel layout, generation, an option that is misspelt) would be predicted as if that were
not there: such a key is refused by name.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vrambudget.bounded import read_object
from vrambudget.config.fields.adapters import ALL_LINEAR
from vrambudget.config.gpus import Gpu, find_gpu, gpu_with_free
from vrambudget.config.job import Job
from vrambudget.config.loops import TRAINERS, loop_defaults
from vrambudget.config.record_inference import KEYS, fields_of, is_inference
from vrambudget.config.record_ranks import READ_AS_ZERO, check_words, fields_of_mesh
from vrambudget.config.settings import object_of, show
from vrambudget.declared import RefusedError, coerced
from vrambudget.errors import NotModelledError, VramBudgetError, did_you_mean
from vrambudget.files import open_file, read_file

_MOST_BYTES = 256 * 2**20  # of a file
_LONGEST_LINE = 2**20

FOUND = ("measured", "card", "source", "versions", "machine")
"""What a run adds to a job."""

REMARKS = ("id", "model", "target", "attention_kernel", "note", "without", "preserve_rng")
"""What else a record says: `target` is the job's target_len, `note`s are for people; whether
checkpoints restore random states, which lie in main memory, changes nothing on the GPU."""

PUBLISHED = ("page", "rounding_bytes", "assumed")
"""What a record of other people's measurement says: where it stands, the last printed digit in
bytes, and what the page leaves open."""


def check_keys(record: Mapping[str, Any]) -> None:
    """Raise NotModelledError for keys that no job has."""
    known = {*Job.model_fields, *FOUND, *REMARKS, *PUBLISHED}
    if is_inference(record):
        known |= KEYS
    unknown = [key for key in record if key not in known]
    if unknown:
        near = [hint for key in unknown if (hint := did_you_mean(key, known))]
        raise NotModelledError(
            f"a job has no {', '.join(map(repr, unknown))}: what it changes is not modelled",
            hint="; ".join(near) or "remarks go into `note`",
        )


def job_of_record(record: Mapping[str, Any]) -> Job:
    """Return the job of a measured record; gaps are as the measuring loop has them."""
    given = {k: record[k] for k in record if k in Job.model_fields}
    mesh = given.get("parallel")
    if isinstance(mesh, Mapping):
        check_words(mesh)
        given = _of_method(mesh.get("method"), given)
    gaps = {"precision": "fp32", "task": "causal-lm", "steps": 3}
    gaps |= {"draw": 0} if "shortest" in given else {}
    values = {**gaps, **_of_loop(given), "eval_first": False, **_of_cudnn(record), **given}
    if is_inference(record):
        values |= fields_of(record)
    if isinstance(mesh, Mapping):
        # A callback that notes a Trainer's weights, where a record has them, empties the cache.
        begins = values.get("loop") in TRAINERS and "weights" in object_of(record, "measured")
        values = {**READ_AS_ZERO, **values, **fields_of_mesh(mesh), "empty_cache": begins}
    values["mode"] = "eval" if values.get("mode") == "inference" else values.get("mode", "train")
    if values.get("keep_outputs") is False and "forward_returns" not in values:
        values["forward_returns"] = "loss"  # of older records: out of hand before backward
    values["target_len"] = record.get("target", record.get("target_len"))
    for key in ("clip", "lora_rank"):  # 0 means off there
        values[key] = values.get(key) or None
    if values.get("lora_targets") is None:
        values["lora_targets"] = ALL_LINEAR
    model = record.get("model")
    if isinstance(model, Mapping) and "experts_implementation" in model:
        values["experts"] = model["experts_implementation"]
    if _is_nanogpt(model):
        values["dropout"] = values.get("dropout") or 0.0
    where = f"record {show(record.get('id', 'without an id'))}"
    versions = object_of(record, "versions")
    values |= {k: versions[k] for k in ("torch", "transformers", "deepspeed") if k in versions}
    return Job.parse(values, where=where)


def gpu_of_record(record: Mapping[str, Any]) -> Gpu:
    """Return the GPU that a record is of. One that the table does not have says itself what it is.

    Raises VramBudgetError.
    """
    machine = object_of(record, "machine") or record
    name = str(record.get("card") or object_of(record, "measured").get("device", ""))
    try:
        return find_gpu(name)
    except VramBudgetError:
        facts = [
            machine.get(k) for k in ("compute_capability", "capacity_bytes", "multiprocessors")
        ]
        if None in facts:
            raise
    try:
        capability, capacity, multiprocessors = coerced(tuple[tuple[int, int], int, int], facts)
    except RefusedError as error:
        raise VramBudgetError(f"machine holds {show(error.value)}; {error.rule}") from None
    gpu = gpu_with_free(name, capability, capacity, source="the record's machine")
    return replace(gpu, multiprocessors=multiprocessors)


def _of_method(method: object, given: dict[str, Any]) -> dict[str, Any]:
    """Return a job of several GPUs with the loop that its record's method names."""
    if method == "trainer":
        return {"optimizer_impl": "foreach", **given, "loop": "trainer"}  # optim="adamw_torch"
    if method in {"sft", "dpo"}:
        return {**given, "loop": method}
    return {**given, "loop": "accelerate"} if method == "accelerate" else given


def with_loop_defaults(record: dict[str, Any]) -> dict[str, Any]:
    """Return a job's record with what its loop's library, or its mode, sets by itself.

    So it runs as it is estimated.
    """
    of_mode = Job.completed({"mode": record["mode"]}) if "mode" in record else {}
    return _of_loop(record) | of_mode | record


def _of_loop(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a loop's library sets by itself; a script's own settings are in its record."""
    return {} if given.get("loop") == "nanogpt" else loop_defaults(given)


def _of_cudnn(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return that a virtual GPU without cuDNN, which a rehearsal names, has no attention of it."""
    virtual = str(record.get("source", "")).startswith("virtual")
    versions = record.get("versions")
    known = isinstance(versions, Mapping) and "cudnn" in versions
    return {"cudnn_attention": False} if virtual and not known else {}


def _is_nanogpt(model: object) -> bool:
    return model == "nanogpt" or (
        isinstance(model, Mapping) and model.get("model_type") == "nanogpt"
    )


def record_files(path: Path) -> list[Path]:
    """Return the path itself, or of a folder its files of job records; others lie there too."""
    if not path.is_dir():
        return [path]
    files = [f for f in sorted(path.glob("*.jsonl")) if f.is_file() and _holds_jobs(f)]
    if not files:
        raise VramBudgetError("this folder holds no file of records", where=str(path))
    return files


def _holds_jobs(file: Path) -> bool:
    with open_file(file, "records") as lines:
        return b'"measured": {' in lines.readline(_LONGEST_LINE)


def read_records(path: Path, *, measured: bool = True) -> list[dict[str, Any]]:
    """Return the records of a file; jobs that are yet to be `measured` are records without it.

    Raises VramBudgetError that names the line that is none.
    """
    try:
        lines = read_file(path, "records", _MOST_BYTES).decode().splitlines()
    except UnicodeDecodeError:
        raise VramBudgetError(
            "cannot read the records: it is not UTF-8 text", where=str(path)
        ) from None
    records = [
        _record(line, f"{path}:{n}", measured=measured)
        for n, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not records:
        raise VramBudgetError(
            "there are no records", where=str(path), hint="`vrambudget measure` writes some"
        )
    return records


def _record(line: str, where: str, *, measured: bool) -> dict[str, Any]:
    record = read_object(line, where=where, what="this line")
    printed = isinstance(record.get("printed"), dict)  # a server's start, by its log
    if measured and not printed and not isinstance(record.get("measured"), dict):
        raise VramBudgetError(
            "this record has no `measured`",
            where=where,
            hint="a record holds a job, its `card`, and what was measured",
        )
    return record
