"""A model in 4 or 8 bit, as users load it: bitsandbytes through transformers, prepared by PEFT.

    from_pretrained(..., quantization_config=BitsAndBytesConfig(load_in_4bit=True, ...))
    from_pretrained(..., quantization_config=BitsAndBytesConfig(load_in_8bit=True))
    prepare_model_for_kbit_training(model)        # where the job trains, and TRL does not

The checkpoint is made up: tensors of the right shape and type in main memory. Weights are loaded
and computed with in the job's 16-bit type (float32 for a job without one).
"""

from typing import Any

import torch

from vrambudget.auto_classes import built
from vrambudget.measure.loading import checkpoint_of

UNPREPARED = ("sft", "dpo")
"""Loops whose trainers take a model as it was loaded."""

_LOADED_AS = {
    "bf16": torch.bfloat16,
    "amp-bf16": torch.bfloat16,
    "fp16": torch.float16,
    "amp-fp16": torch.float16,
}


def load_quantised(job: Any, config: Any, from_config: Any) -> Any:
    """Return the model on the GPU, its linear layers in 4 or 8 bit."""
    import transformers  # noqa: PLC0415 - only such jobs need it

    dtype = _LOADED_AS.get(job.get("precision", "fp32"), torch.float32)
    with torch.device("meta"):
        attention = job.get("attention", "sdpa")
        model = built(from_config, config, task="causal-lm", attention=attention, dtype=dtype)
    four_bit = {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": job["quant"],
        "bnb_4bit_use_double_quant": job.get("double_quant", True),
        "bnb_4bit_compute_dtype": dtype,
    }
    how = {"load_in_8bit": True} if job["quant"] == "int8" else four_bit
    quantisation = transformers.BitsAndBytesConfig(**how)
    model = type(model).from_pretrained(
        None,
        config=config,
        state_dict=checkpoint_of(model),
        dtype=dtype,
        quantization_config=quantisation,
        attn_implementation=model.config._attn_implementation,  # noqa: SLF001 - what it has
        device_map={"": 0},
    )
    prepares = job.get("mode", "train") == "train" and job.get("loop") not in UNPREPARED
    return _prepared(model, job) if prepares else model


def _prepared(model: Any, job: Any) -> Any:
    import peft  # noqa: PLC0415 - only such jobs need it

    return peft.prepare_model_for_kbit_training(
        model,
        use_gradient_checkpointing=job.get("checkpointing", "none") == "full",
        gradient_checkpointing_kwargs={"use_reentrant": False},
    )
