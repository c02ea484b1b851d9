"""The same job elsewhere: as a command, as a call in Python, as transformers' TrainingArguments.

Source: transformers/training_args.py for the names; what has no argument there is a comment.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from vrambudget.cli.job_options import SWITCHES
from vrambudget.config.job import Job

Model = str | Mapping[str, Any]
_OPTIMIZERS = {
    "adamw": "adamw_torch",
    "sgd": "sgd",
    "adafactor": "adafactor",
    "lion": "lion_32bit",
    "lion-8bit": "lion_8bit",
    "adamw-8bit": "adamw_bnb_8bit",
    "paged-adamw-8bit": "paged_adamw_8bit",
}
_CONFIG = "config.json"  # where a pasted configuration should be saved


def command_line(model: Model, gpu: str, fields: Mapping[str, Any]) -> str:
    """Return the command that gives the same answer."""
    words = ["vrambudget", model if isinstance(model, str) else _CONFIG]
    for name, value in fields.items():
        option = f"--{name.replace('_', '-')}"
        if Job.model_fields[name].annotation is bool:
            option = SWITCHES[name][0] if name in SWITCHES else option
            words += [option] if value != Job.model_fields[name].default else []
        else:
            words += [option, str(value)]
    return shlex.join([*words, *(["--gpu", gpu] if gpu else [])])


def python_call(model: Model, gpu: str, fields: Mapping[str, Any]) -> str:
    """Return the call that gives the same answer."""
    given = {**fields, **({"gpu": gpu} if gpu else {})}
    name = json.dumps(model) if isinstance(model, str) else f'Path("{_CONFIG}")'
    arguments = "".join(f", {key}={value!r}" for key, value in given.items())
    return f"import vrambudget\n\nvrambudget.estimate({name}{arguments})"


def training_arguments(job: Job) -> str:
    """Return the arguments of transformers' Trainer for the job."""
    lines = "".join(f"    {line}\n" for line in _arguments(job))
    return f"TrainingArguments(\n{lines})"


def _arguments(job: Job) -> Iterator[str]:
    yield f"per_device_train_batch_size={job.batch},"
    if job.grad_accum > 1:
        yield f"gradient_accumulation_steps={job.grad_accum},"
    if job.autocast_dtype:
        yield f"{job.autocast_dtype}=True,"
    elif job.precision != "fp32":
        yield f"# load the model with dtype=torch.{_TYPES[job.precision]}"
    if job.checkpointing == "full":
        yield "gradient_checkpointing=True,"
    optimizer = _OPTIMIZERS.get(job.optimizer)
    if optimizer is None:
        yield f"# {job.optimizer}: pass it as Trainer(optimizers=...)"
    else:
        fused = "_fused" if optimizer == "adamw_torch" and job.optimizer_impl == "fused" else ""
        yield f'optim="{optimizer}{fused}",'
    yield f"max_grad_norm={job.clip or 0.0},"
    if job.lora_rank is not None:
        yield f'# peft: LoraConfig(r={job.lora_rank}, target_modules="all-linear")'
    if job.quant is not None:
        yield '# BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")'
    yield f"# sequences of {job.block} tokens"


_TYPES = {"bf16": "bfloat16", "fp16": "float16"}
