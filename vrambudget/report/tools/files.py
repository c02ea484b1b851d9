"""YAML for TRL, axolotl, LLaMA-Factory and accelerate.

Source: TRL 1.16, trainer/sft_config.py, trainer/model_config.py, scripts/utils.py; axolotl 0.19,
utils/schemas/, utils/config/__init__.py (resolve_dtype), core/builders/base.py; LLaMA-Factory
0.9.5, hparams/, model/adapter.py (init_adapter).
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from vrambudget.config.job import Job
from vrambudget.report.tools.distributed import (
    has_engine,
    of_accelerate,
    of_axolotl,
    of_trainer,
)
from vrambudget.report.tools.words import (
    TYPES,
    arguments,
    can_be_said,
    flag_of,
    learning_rate,
    model_id,
    optim_of,
)
from vrambudget.scenario import Scenario

_YOURS = "  # replace it by yours"
Line = tuple[str, Any]


def suits_trl(job: Job) -> bool:
    """Return whether TRL's SFTTrainer has words for the job; compiled jobs are Trainer's alone."""
    return can_be_said(job) and job.task == "causal-lm" and not job.compile


def suits_axolotl(job: Job) -> bool:
    """Return whether axolotl has words for the job: its 16-bit weights are under autocast."""
    half = job.autocast_dtype is not None and job.weight_dtype == job.autocast_dtype
    can = half and (job.precision == "amp-bf16" or job.lora_rank is not None)
    return suits_trl(job) and (can or job.precision == "fp32" or has_engine(job))


def suits_llama_factory(job: Job) -> bool:
    """Return whether LLaMA-Factory has words for the job.

    What is trained is in float32 there, unless everything is in bfloat16; what is not trained is
    loaded in the type that is computed in.
    """
    stored = "fp32" if job.lora_rank is None else job.autocast_dtype
    mixed = job.autocast_dtype is not None and job.weight_dtype == stored
    return suits_trl(job) and (mixed or job.precision in {"bf16", "fp32"})


def trl(scenario: Scenario, job: Job, head: str) -> str:
    """Return a file for `trl sft --config FILE`."""
    return _yaml(head, _trl(scenario, job), data="dataset_name")


def axolotl(scenario: Scenario, job: Job, head: str) -> str:
    """Return a file for `axolotl train FILE`."""
    return _yaml(head, _axolotl(scenario, job), data="datasets")


def llama_factory(scenario: Scenario, job: Job, head: str) -> str:
    """Return a file for `llamafactory-cli train FILE`."""
    return _yaml(head, _llama_factory(scenario, job), data="dataset")


def accelerate(scenario: Scenario, job: Job, head: str) -> str:
    """Return a file for `accelerate launch --config_file FILE train.py`."""
    del scenario  # the script loads it
    return _yaml(head, of_accelerate(job), data="")


def _yaml(head: str, lines: Iterable[Line], *, data: str) -> str:
    """Return keys and values as YAML, whose scalars and lists JSON's are."""
    said = [f"# {line}" for line in head.splitlines()]
    for key, value in lines:
        # YAML 1.1 reads 2e-05 as text: a number has a point.
        text = f"{value:.6f}".rstrip("0") if key == "learning_rate" else json.dumps(value)
        said.append(f"{key}: {text}{_YOURS if key == data else ''}")
    return "\n".join(said)


def _trl(scenario: Scenario, job: Job) -> Iterator[Line]:
    yield "model_name_or_path", model_id(scenario)
    yield "dtype", TYPES[job.weight_dtype]
    yield "attn_implementation", job.attention
    yield "dataset_name", "trl-lib/Capybara"
    yield "output_dir", "trained"
    yield "max_length", job.block
    yield "bf16", flag_of(job) == "bf16"  # true unless it is said
    yield "fp16", flag_of(job) == "fp16"
    yield from arguments(job)
    yield from of_trainer(job)
    yield "optim", optim_of(job)
    if job.lora_rank is not None:
        yield "use_peft", True
        yield "lora_r", job.lora_rank
        yield "lora_alpha", 2 * job.lora_rank
        yield "lora_dropout", job.lora_dropout
        yield "lora_target_modules", _targets(job, "all-linear")
    if job.quant == "int8":
        yield "load_in_8bit", True
    if job.quant == "nf4":
        yield "load_in_4bit", True
        yield "bnb_4bit_quant_type", "nf4"
        yield "use_bnb_nested_quant", job.double_quant


def _axolotl(scenario: Scenario, job: Job) -> Iterator[Line]:
    yield "base_model", model_id(scenario)
    yield "datasets", [{"path": "mhenrichsen/alpaca_2k_test", "type": "alpaca"}]
    yield "output_dir", "trained"
    yield "sequence_len", job.block
    yield "sample_packing", False
    yield "attn_implementation", job.attention
    yield "bf16", flag_of(job) == "bf16"
    yield "fp16", flag_of(job) == "fp16"
    yield "micro_batch_size", job.batch
    yield "gradient_accumulation_steps", job.grad_accum
    yield "gradient_checkpointing", job.checkpointing == "full"
    yield "max_grad_norm", job.clip or 0.0
    yield "optimizer", optim_of(job)
    yield "learning_rate", learning_rate(job)
    yield "num_epochs", 1
    yield from of_axolotl(job)
    if job.lora_rank is not None:
        yield "adapter", "qlora" if job.quant == "nf4" else "lora"
        yield "lora_r", job.lora_rank
        yield "lora_alpha", 2 * job.lora_rank
        yield "lora_dropout", job.lora_dropout
        if job.lora_targets == "all-linear":
            yield "lora_target_linear", True
        else:
            yield "lora_target_modules", _targets(job, "all-linear")
    if job.quant == "int8":
        yield "load_in_8bit", True
    if job.quant == "nf4":
        yield "load_in_4bit", True
        yield "bnb_config_kwargs", {"bnb_4bit_use_double_quant": job.double_quant}


def _llama_factory(scenario: Scenario, job: Job) -> Iterator[Line]:
    yield "model_name_or_path", model_id(scenario)
    yield "stage", "sft"
    yield "do_train", True
    yield "dataset", "alpaca_en_demo"
    yield "template", "default"
    yield "output_dir", "trained"
    yield "cutoff_len", job.block
    yield "flash_attn", {"sdpa": "sdpa", "eager": "disabled"}[job.attention]
    yield "finetuning_type", "full" if job.lora_rank is None else "lora"
    if job.lora_rank is not None:
        yield "lora_rank", job.lora_rank
        yield "lora_alpha", 2 * job.lora_rank
        yield "lora_dropout", job.lora_dropout
        yield "lora_target", ",".join(_targets(job, "all"))
    if job.quant == "int8":
        yield "quantization_bit", 8
    if job.quant == "nf4":
        yield "quantization_bit", 4
        yield "quantization_type", "nf4"
        yield "double_quantization", job.double_quant
    if job.precision == "bf16" and not has_engine(job):
        yield "pure_bf16", True
    elif flag := flag_of(job):
        yield flag, True
    yield from ((k, v) for k, v in arguments(job) if k != "gradient_checkpointing")
    yield "disable_gradient_checkpointing", job.checkpointing == "none"
    yield "use_reentrant_gc", False
    yield from of_trainer(job)
    yield "optim", optim_of(job)


def _targets(job: Job, everything: str) -> list[str]:
    return [everything] if isinstance(job.lora_targets, str) else list(job.lora_targets)
