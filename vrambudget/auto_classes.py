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
    AutoModelForImageTextToText, whose forward takes text alone, too. One that hears sound is an
    AutoModelForSpeechSeq2Seq.
    """
    usual = getattr(transformers, AUTO_CLASSES[task])
    if type(config) in usual._model_mapping:  # noqa: SLF001 - what it builds
        return usual
    if task == "causal-lm" and hasattr(config, "text_config"):
        return transformers.AutoModelForImageTextToText
    if task == "seq2seq-lm" and sound_shape_of(config):
        return transformers.AutoModelForSpeechSeq2Seq
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


def sound_shape_of(config: Any) -> tuple[int, int] | None:
    """Return bins of mel and frames of what a model hears, None for one that hears nothing."""
    if getattr(config, "model_type", None) != "whisper":
        return None
    return config.num_mel_bins, 2 * config.max_source_positions


PEFT_TASKS: Mapping[str, str] = {
    "causal-lm": "CAUSAL_LM",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
    "seq-cls": "SEQ_CLS",
}
"""What PEFT calls these tasks; it has no name for others.

Its wrapper for SEQ_2_SEQ_LM hands on input_ids, which a model of sound does not take: those are
adapted without a name.
"""


def lora_options(
    task: str, config: Any, *, rank: int, targets: str | Sequence[str], dropout: float
) -> dict[str, Any]:
    """Return the options of PEFT's LoraConfig for a job on the model of a configuration."""
    return {
        "r": rank,
        "lora_alpha": 16,
        "lora_dropout": dropout,
        "target_modules": targets if isinstance(targets, str) else list(targets),
        "task_type": None if sound_shape_of(config) else PEFT_TASKS.get(task),
    }
