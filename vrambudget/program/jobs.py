"""What of a job a program says nothing of: it is of the jobs that were recorded alone."""

from collections.abc import Mapping
from typing import Any

from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.loops import TRL_LOOPS
from vrambudget.config.settings import show
from vrambudget.errors import NotModelledError
from vrambudget.program.form import COUNT, Program
from vrambudget.program.keys import TRACED
from vrambudget.program.label_count import with_count
from vrambudget.program.operand_types import has_no_cast


def not_recorded(
    when: Mapping[str, list[Any]], task: Task, job: Job | None, call: str
) -> str | None:
    """Return what of a job a recording says nothing of, None where it says all.

    `call`: one of those that `generate` makes, or a "whole" forward pass.
    """
    if task not in when.get("task", [task]) or call not in when.get("call", ["whole"]):
        return f"for {task}" if call in when.get("call", ["whole"]) else "that generates"
    if job is None:
        return None
    # A checkpointed layer that trains is called without the cache (GradientCheckpointingLayer).
    drops_cache = job.checkpointing != "none" and (job.mode, job.model_mode) == ("train", "train")
    is_wide = job.weight_dtype == "fp32" or job.prepares_kbit
    asked = {
        "batch": "one" if job.batch == 1 else "several",
        "attention": job.attention,
        "attention_mask": job.attention_mask not in {None, "none"},
        "causal_mask": job.causal_mask or "skipped",
        "use_cache": bool(job.use_cache) and not drops_cache,
        "checkpointing": "full" if drops_cache else "none",
        "channels_last": job.channels_last,
        "weights": "32 bit" if is_wide else "16 bit",
        "cache": job.cache if job.cache in {"none", "static"} else "dynamic",
        "padding": job.padding != "none" or job.causal_mask == "built",
        "fp16": job.weight_dtype == "fp16" and not is_wide,
        "autocast": job.autocast_dtype is not None,
        "image_size": job.image_size,
    }
    for name, value in asked.items():
        if value not in when.get(name, [value]):
            return f"with {name} {show(value)}"
    evaluates = job.mode != "train" or job.model_mode != "train" or job.evaluates
    if evaluates and "model_mode" in when and not (drops_cache and "checkpointing" in when):
        return "where it evaluates"
    for wrong, what in (
        (
            drops_cache and job.use_cache and job.evaluates and "checkpointing" not in when,
            "that evaluates with a cache",
        ),
        (job.experts != "grouped_mm", f"with experts run {job.experts}"),
        (bool(job.image_size) and task != "image-cls" and "inputs" not in when, "with images"),
        (job.lora_rank is not None and task in {"token-cls", "qa"}, "with LoRA"),
        (bool(job.compile), "compiled"),
    ):
        if wrong:
            return what
    return None


def check_has_all(program: Program, job: Job, model_type: str) -> None:
    """Raise NotModelledError where a program that was read has nothing for what a job asks."""
    if (wrong := _lacking(program, job)) is not None:
        raise unrecorded(model_type, wrong, job)


def untraced(job: Job) -> bool:
    """Return whether a traced model does not answer a job either."""
    is_other = job.compile or job.mode == "generate" or job.quant or job.loop in TRL_LOOPS
    return bool(is_other or _gathers_in_16_bit(job))


def unrecorded(model_type: str, wrong: str, job: Job | None) -> NotModelledError:
    """Return the error for what a recording says nothing of, with the way that answers it."""
    hint = TRACED
    if job is not None and untraced(job):
        ranks = f" --ranks {job.mesh.ranks}" if job.mesh.ranks > 1 else ""
        script = f"`vrambudget rehearse --gpu GPU{ranks} -- python {job.mode}.py`"
        hint = f"{script} runs the script as it is"
    if job is not None and job.quant is not None and job.autocast_dtype is not None:
        hint += f"; --precision {job.autocast_dtype} may be answered"
    return NotModelledError(f"{model_type} {wrong} was not recorded", hint=hint)


def _lacking(program: Program, job: Job) -> str | None:
    if program.code and _counts(program, job) and with_count(program) is None:
        return f"with {COUNT}"
    if _gathers_in_16_bit(job):
        return f"with {job.mesh.data} in mixed precision"
    wanted = {
        "with LoRA": job.lora_rank is not None,
        f"in {job.quant}": job.quant is not None,
        f"in loop {job.loop}": job.loop in TRL_LOOPS,
    }
    if any(wanted.values()) and _has_experts(program):
        return f"{next(word for word, is_so in wanted.items() if is_so)} beside experts"
    if job.quant is not None and job.autocast_dtype is not None and not has_no_cast(program):
        return f"in {job.quant} under {job.precision}"
    return None


def _gathers_in_16_bit(job: Job) -> bool:
    """Return whether FSDP casts float32 shards as it gathers them: programs have one type for both.

    Source: torch/distributed/fsdp (MixedPrecisionPolicy.param_dtype), which accelerate sets.
    """
    mixed = job.param_dtype or (job.loop != "plain" and job.autocast_dtype)
    return job.mesh.data in {"fsdp1", "fsdp2"} and bool(mixed)


def played(program: Program, job: Job | None) -> Program:
    """Return what a job plays of a program: with Trainer, a loss by their count."""
    by_count = with_count(program) if job is not None and _counts(program, job) else None
    return by_count or program


def _counts(program: Program, job: Job) -> bool:
    """Return whether a job's loop gives the model a count of labels, which it does not ignore."""
    given = job.loop == "trainer" and job.mode == "train"
    takes = program.source.get("accepts_loss_kwargs")
    return bool(given and takes and COUNT not in program.source.get("ignores", ()))


def _has_experts(program: Program) -> bool:
    """Return whether experts' weights are parameters [experts, ...] of no linear layer."""
    return any(w == "weight" and len(v[2]) > 2 and "expert" in v[0] for w, v in program.built)  # noqa: PLR2004
