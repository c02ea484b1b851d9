"""LoRA by PEFT itself: its own code wraps the live modules.

Its adapters are made on the CPU and moved to the GPU, as `nn.Module.to` moves them: a module gets
new parameters, for a traced tensor cannot take the place of one on the CPU.

Source: peft/tuners/tuners_utils.py (_move_adapter_to_device_of_base_layer).
"""

import warnings
from typing import Any

import peft
import torch

from vrambudget.auto_classes import lora_options
from vrambudget.config.job import Job


def with_lora(model: Any, job: Job) -> Any:
    """Return the model in PEFT's wrapper, with the adapters that the job names."""
    assert job.task is not None  # noqa: S101 - resolved
    assert job.lora_rank is not None  # noqa: S101 - the caller saw it
    options = lora_options(
        job.task,
        model.config,
        rank=job.lora_rank,
        targets=job.lora_targets,
        dropout=job.lora_dropout,
    )
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with warnings.catch_warnings():  # PEFT says it again where the model trains
            warnings.filterwarnings("ignore", message="The following \\w+_pattern keys")
            wrapped = peft.get_peft_model(model, peft.LoraConfig(**options))
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
    if job.checkpointing == "full":
        wrapped.enable_input_require_grads()
    return wrapped
