"""What the tools have in common: TrainingArguments' names, and a model's id on the hub.

Source: transformers 5.17, training_args.py (TrainingArguments, OptimizerNames).
"""

from collections.abc import Iterator
from typing import Any

from vrambudget.config.cards import card_name, load_card
from vrambudget.config.job import Job
from vrambudget.errors import NotModelledError
from vrambudget.report.tools.distributed import has_engine, mesh_can_be_written
from vrambudget.scenario import Scenario

OPTIMIZERS = {
    "adamw": "adamw_torch",
    "sgd": "sgd",
    "lion": "lion_32bit",
    "lion-8bit": "lion_8bit",
    "adamw-8bit": "adamw_bnb_8bit",
    "paged-adamw-8bit": "paged_adamw_8bit",
}
TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_ELSEWHERE = {"nanogpt": "nanoGPT's own train.py", "titan": "torchtitan"}


def optim_of(job: Job) -> str | None:
    """Return TrainingArguments' word for the optimizer, None where it has none."""
    name = OPTIMIZERS.get(job.optimizer)
    return f"{name}_fused" if name == "adamw_torch" and job.optimizer_impl == "fused" else name


def arguments(job: Job) -> Iterator[tuple[str, Any]]:
    """Yield what TrainingArguments says of the job, but for the optimizer."""
    yield "per_device_train_batch_size", job.batch
    if job.grad_accum > 1:
        yield "gradient_accumulation_steps", job.grad_accum
    yield "gradient_checkpointing", job.checkpointing == "full"
    yield "max_grad_norm", job.clip or 0.0
    yield "learning_rate", learning_rate(job)
    if job.compile:
        yield "torch_compile", True


def flag_of(job: Job) -> str | None:
    """Return which of bf16 and fp16 is on: autocast's type, or that of DeepSpeed's engine."""
    return job.weight_dtype if has_engine(job) else job.autocast_dtype


def learning_rate(job: Job) -> float:
    """Return what to begin with: adapters take ten times as much as all weights.

    Source: TRL's documentation, "PEFT integration": 2.0e-4, "~10x the full fine-tuning rate".
    """
    return 2e-5 if job.lora_rank is None else 2e-4


def can_be_said(job: Job) -> bool:
    """Return whether TrainingArguments and LoraConfig have words for the job."""
    return (
        optim_of(job) is not None
        and job.checkpointing in {"none", "full"}
        and not (job.freeze or job.use_cache or job.label_smoothing or job.eval_batches)
        and job.rows == "full"
        and mesh_can_be_written(job)
    )


def model_id(scenario: Scenario) -> str:
    """Return what from_pretrained takes. Raises NotModelledError for a model that it has not."""
    kind = scenario.config.model_type
    if kind in _ELSEWHERE:
        raise NotModelledError(
            f"{scenario.model} is no model of transformers; {_ELSEWHERE[kind]} trains it",
            hint="leave --as out",
        )
    known = card_name(scenario.model)
    repositories = load_card(known).repositories if known else ()
    return str(repositories[0]) if repositories else scenario.model
