"""What transformers and PEFT call a task: the classes that build a model for it, LoRA's options.

Nothing is imported here: jobs are measured in environments that have PyTorch and little else.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

AUTO_CLASSES: Mapping[str, str] = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq-cls": "AutoModelForSequenceClassification",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "image-cls": "AutoModelForImageClassification",
    "embed": "AutoModel",
}
"""The classes whose `from_config` builds a model."""


def class_for(transformers: Any, task: str, config: Any) -> Any:
    """Return the class of transformers that builds a configuration's model for a task.

    A model that reads images besides text may have no causal language model's class: then it is
    AutoModelForImageTextToText, whose forward takes text alone, too.
    """
    usual = getattr(transformers, AUTO_CLASSES[task])
    reads_more = task == "causal-lm" and hasattr(config, "text_config")
    if reads_more and type(config) not in usual._model_mapping:  # noqa: SLF001 - what it builds
        return transformers.AutoModelForImageTextToText
    return usual


IMAGE_SIZE = 224
"""Pixels along each side of an image for a model that reads any."""


def built(make: Callable[..., Any], config: Any, *, attention: str, dtype: object) -> Any:
    """Return the model that a class's `from_config` makes.

    A class without the attention that PyTorch offers takes its own, as transformers itself chooses.
    """
    try:
        return make(config, attn_implementation=attention, dtype=dtype)
    except ValueError as error:
        if attention != "sdpa" or "does not support an attention implementation" not in str(error):
            raise
    return make(config, attn_implementation="eager", dtype=dtype)


def image_shape_of(config: Any) -> tuple[int, int, int]:
    """Return channels, height and width of the images that a configuration's model is fed."""
    size = getattr(config, "image_size", None) or IMAGE_SIZE
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return getattr(config, "num_channels", 3), height, width


PEFT_TASKS: Mapping[str, str] = {
    "causal-lm": "CAUSAL_LM",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
    "seq-cls": "SEQ_CLS",
}
"""What PEFT calls these tasks; it has no name for others."""


def lora_options(
    task: str, *, rank: int, targets: str | Sequence[str], dropout: float
) -> dict[str, Any]:
    """Return the options of PEFT's LoraConfig for a job."""
    return {
        "r": rank,
        "lora_alpha": 16,
        "lora_dropout": dropout,
        "target_modules": targets if isinstance(targets, str) else list(targets),
        "task_type": PEFT_TASKS.get(task),
    }
