"""A script with transformers' Trainer, and TrainingArguments alone.

Source: transformers 5.17, training_args.py, BitsAndBytesConfig; PEFT 0.21, LoraConfig,
prepare_model_for_kbit_training.
"""

import json
from collections.abc import Iterator

from vrambudget.auto_classes import AUTO_CLASSES, PEFT_TASKS
from vrambudget.config.job import Job
from vrambudget.report.tools.distributed import of_trainer
from vrambudget.report.tools.words import TYPES, arguments, flag_of, model_id, optim_of
from vrambudget.scenario import Scenario

_BITS = {"nf4": 'load_in_4bit=True, bnb_4bit_quant_type="nf4"', "int8": "load_in_8bit=True"}


def training_arguments(job: Job) -> str:
    """Return the arguments of transformers' Trainer for the job."""
    lines = "".join(f"    {line}\n" for line in (*_arguments(job), *_beside(job)))
    return f"TrainingArguments(\n{lines})"


def script(scenario: Scenario, job: Job, head: str) -> str:
    """Return a script that trains so: `python train.py DATASET`."""
    folder = 'output_dir="trained",'
    return "\n".join(
        [
            *(f"# {line}" for line in head.splitlines()),
            "import sys",
            "",
            "import torch",
            "from datasets import load_from_disk",
            *_imports(job),
            "",
            "model = " + _model(scenario, job),
            *_adapters(job),
            "arguments = TrainingArguments(",
            *(f"    {line}" for line in (folder, *_arguments(job))),
            ")",
            f"# Rows of {job.block} tokens with input_ids and labels, as save_to_disk wrote them.",
            "dataset = load_from_disk(sys.argv[1])",
            "Trainer(model=model, args=arguments, train_dataset=dataset).train()",
        ]
    )


def _imports(job: Job) -> Iterator[str]:
    if job.lora_rank is not None:
        more = ", prepare_model_for_kbit_training" if job.quant else ""
        yield f"from peft import LoraConfig, get_peft_model{more}"
    names = [AUTO_CLASSES[job.task or "causal-lm"], "Trainer", "TrainingArguments"]
    names += ["BitsAndBytesConfig"] if job.quant else []
    yield f"from transformers import {', '.join(sorted(names))}"


def _model(scenario: Scenario, job: Job) -> str:
    dtype = f"torch.{TYPES[job.weight_dtype]}"
    lines = [
        f'    "{model_id(scenario)}",',
        f"    dtype={dtype},",
        f'    attn_implementation="{job.attention}",',
    ]
    if job.quant == "int8":
        lines += ["    quantization_config=BitsAndBytesConfig(load_in_8bit=True),"]
    if job.quant == "nf4":
        lines += [
            "    quantization_config=BitsAndBytesConfig(",
            "        load_in_4bit=True,",
            '        bnb_4bit_quant_type="nf4",',
            f"        bnb_4bit_use_double_quant={job.double_quant},",
            f"        bnb_4bit_compute_dtype={dtype},",
            "    ),",
        ]
    name = AUTO_CLASSES[job.task or "causal-lm"]
    return "\n".join([f"{name}.from_pretrained(", *lines, ")"])


def _adapters(job: Job) -> Iterator[str]:
    if job.lora_rank is None:
        return
    if job.quant is not None:
        again = job.checkpointing == "full"
        yield f"again = {again}  # run each layer again in backward"
        yield "model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=again)"
    targets = json.dumps(job.lora_targets)
    kind = PEFT_TASKS.get(job.task or "causal-lm")
    yield "model = get_peft_model("
    yield "    model,"
    yield "    LoraConfig("
    yield f"        r={job.lora_rank},"
    yield f"        lora_alpha={2 * job.lora_rank},"
    yield f"        lora_dropout={job.lora_dropout},"
    yield f"        target_modules={targets},"
    if kind is not None:
        yield f'        task_type="{kind}",'
    yield "    ),"
    yield ")"


def _arguments(job: Job) -> Iterator[str]:
    for name, value in arguments(job):
        yield f"{name}={value!r},"
    if flag := flag_of(job):
        yield f"{flag}=True,"
    for name, value in of_trainer(job):
        yield f"{name}={value!r},"
    if (optim := optim_of(job)) is not None:
        yield f'optim="{optim}",'


def _beside(job: Job) -> Iterator[str]:
    """Yield what has no argument, as comments."""
    if job.autocast_dtype is None and job.precision != "fp32":
        yield f"# load the model with dtype=torch.{TYPES[job.weight_dtype]}"
    if optim_of(job) is None:
        yield f"# {job.optimizer}: pass it as Trainer(optimizers=...)"
    if job.lora_rank is not None:
        yield f'# peft: LoraConfig(r={job.lora_rank}, target_modules="all-linear")'
    if job.quant is not None:
        yield f"# BitsAndBytesConfig({_BITS[job.quant]})"
    yield f"# sequences of {job.block} tokens"
