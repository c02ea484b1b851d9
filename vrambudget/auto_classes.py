"""What transformers and PEFT call a task: the classes that build a model for it, LoRA's options.

Nothing is imported here: jobs are measured in environments that have PyTorch and little else.
"""

from collections.abc import Mapping, Sequence
from typing import Any

AUTO_CLASSES: Mapping[str, str] = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq-cls": "AutoModelForSequenceClassification",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "image-cls": "AutoModelForImageClassification",
}
"""The classes whose `from_config` builds a model."""

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
