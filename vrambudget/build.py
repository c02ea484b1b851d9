"""The model of a job: built, loaded or quantised, frozen and adapted, or refused by name."""

from functools import partial
from typing import Protocol, runtime_checkable

from vrambudget import dtypes
from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.loops import TRAINERS, TRL_LOOPS
from vrambudget.config.model_config import ModelConfig
from vrambudget.config.old_torch import MODEL_TYPES, is_old
from vrambudget.engine.module import Module
from vrambudget.errors import NotModelledError

_WITHOUT_SMOOTHING = {
    "seq2seq-lm": "the collator makes decoder_input_ids",
    "embed": "there are no labels",
}


def build(config: ModelConfig, job: Job) -> Module:
    """Build the job's model as its script does, loaded or quantised where it says so.

    Raises NotModelledError for what the model cannot do in such a job.
    """
    _check(config, job)
    assert job.task is not None  # noqa: S101 - resolved by the caller
    if job.quant is not None:
        from vrambudget.training.kbit import (  # noqa: PLC0415 - most are not
            build_in_main_memory,
            build_quantised,
        )

        build = partial(config.build, job.task)
        if job.mesh.data in {"fsdp1", "fsdp2"}:
            return build_in_main_memory(build, job.quant, double=job.double_quant)
        return build_quantised(build, job, config.model_type)
    if job.load is None:
        return _made(config, job.task)
    from vrambudget.training.loading import load  # noqa: PLC0415 - most are made on the GPU

    return load(config, partial(_made, config, job.task), job.load)


def _check(config: ModelConfig, job: Job) -> None:
    """Raise NotModelledError for what the model cannot do in such a job."""
    if job.loop in TRAINERS and not config.checked_with:
        raise NotModelledError(
            f"{config.model_type} in loop {job.loop!r} is not modelled",
            hint="Trainer's loop is modelled for transformers' models alone; use --loop plain",
        )
    if is_old(job.torch) and config.model_type not in MODEL_TYPES:
        raise NotModelledError(
            f"{config.model_type} under torch {job.torch} is not modelled",
            hint=f"{', '.join(MODEL_TYPES)} is; name a newer PyTorch, such as --torch 2.6",
        )
    if job.loop in TRL_LOOPS:
        from vrambudget.training.trl_checks import check_trl  # noqa: PLC0415 - most are not

        check_trl(config, job)
    if job.label_smoothing and not config.checked_with:
        raise NotModelledError(
            f"{config.model_type} with label smoothing is not modelled: its loss is its own",
            hint="`vrambudget rehearse --gpu GPU -- python train.py` runs the script as it is",
        )
    if job.label_smoothing and job.task in _WITHOUT_SMOOTHING:
        raise NotModelledError(
            f"label smoothing for {job.task} is not modelled: {_WITHOUT_SMOOTHING[job.task]}",
            hint="leave --label-smoothing out; `vrambudget rehearse --gpu GPU -- python train.py`"
            " runs the script as it is",
        )
    if job.rows == "packed" and not config.reads_position_ids:
        raise NotModelledError(
            f"{config.model_type} with packed rows is not modelled",
            hint="`vrambudget rehearse --gpu GPU -- python train.py` runs the script as it is",
        )
    if job.channels_last and not config.reads_channels_last:
        raise NotModelledError(f"{config.model_type} with channels last is not modelled")
    if job.attention_mask != "none" and not config.reads_attention_mask:
        raise NotModelledError(f"{config.model_type} with an attention mask is not modelled")
    if job.quant is not None and not (config.loads_in_4bit and job.task == "causal-lm"):
        raise NotModelledError(
            f"{config.model_type} for {job.task} in {job.quant} is not modelled",
            hint="causal language models of transformers without experts are; or `vrambudget"
            " rehearse --gpu GPU -- python train.py` runs the script as it is",
        )


def _made(config: ModelConfig, task: Task) -> Module:
    model: Module = config.body() if task == "embed" else config.build(task)
    if model is None:
        raise NotModelledError(f"{config.model_type} without a head is not modelled")
    return model


@runtime_checkable
class Adapting(Protocol):
    """A model that freezes its parameters and takes its adapters itself."""

    def adapt(self, job: Job) -> None:
        """Do what the job says."""


def adapt(model: Module, model_type: str, job: Job) -> None:
    """Freeze and put adapters in, as the job says; imported here, for most jobs do neither."""
    if isinstance(model, Adapting):
        model.adapt(job)
        return
    if job.freeze:
        from vrambudget.training.freeze import freeze  # noqa: PLC0415

        freeze(model, job.freeze)
    if job.lora_rank is not None:
        from vrambudget.training.lora import add_lora  # noqa: PLC0415

        add_lora(
            model,
            job.lora_rank,
            job.lora_targets,
            model_type=model_type,
            dropout_p=job.lora_dropout,
            trains_head=job.task == "seq-cls",
            casts_to=dtypes.bfloat16 if job.quant and job.loop in TRL_LOOPS else None,
        )
