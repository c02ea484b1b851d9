"""What of a job a program says nothing of: it is of the jobs that were recorded alone."""

from collections.abc import Mapping
from typing import Any

from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.loops import TRL_LOOPS
from vrambudget.config.settings import show
from vrambudget.program.form import COUNT, Program


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
    asked = {
        "batch": "one" if job.batch == 1 else "several",
        "attention": job.attention,
        "attention_mask": job.attention_mask not in {None, "none"},
        "causal_mask": job.causal_mask or "skipped",
        "use_cache": bool(job.use_cache) and not drops_cache,
        "checkpointing": "full" if drops_cache else "none",
        "channels_last": job.channels_last,
        "weights": "32 bit" if job.weight_dtype == "fp32" else "16 bit",
        "cache": job.cache if job.cache in {"none", "static"} else "dynamic",
        "padding": job.padding != "none" or job.causal_mask == "built",
        "fp16": job.weight_dtype == "fp16",
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
        (job.loop in TRL_LOOPS, f"in loop {job.loop}"),
        (bool(job.compile), "compiled"),
    ):
        if wrong:
            return what
    return None


def lacking(program: Program, job: Job) -> str | None:
    """Return what of a job a program that was read has nothing for."""
    given = job.loop == "trainer" and job.mode == "train"
    if given and program.source.get("accepts_loss_kwargs") and not _takes_count(program):
        return f"with {COUNT}"
    if job.lora_rank is not None and _has_experts(program):
        return "with LoRA beside experts"
    return None


def _takes_count(program: Program) -> bool:
    names = (*program.source.get("ignores", ()), *(name for name, *_ in program.inputs))
    return COUNT in names


def _has_experts(program: Program) -> bool:
    """Return whether experts' weights are parameters [experts, ...] of no linear layer."""
    return any(w == "weight" and len(v[2]) > 2 and "expert" in v[0] for w, v in program.built)  # noqa: PLR2004
