"""PyTorch 1.10 with transformers 4.16: followed where a job names it, for what was published of it.

Hugging Face's page on the anatomy of a training's memory was measured with them, in January 2022:
BERT-large, Trainer, a V100. Most of what came later is refused by name.

    gradients   zeroed where they are, not dropped: set_to_none is False
    attention   eager; scaled_dot_product_attention came with PyTorch 2.0
    optimizers  one parameter after another: transformers' AdamW and Adafactor, bitsandbytes 0.26
    context     kernels are loaded at the start, not when they are used: 1.3 GiB

Source: torch/nn/modules/module.py (zero_grad) of 1.10.0; transformers/trainer.py of 4.16.2.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vrambudget.config.job import Job

OLD_TORCH = "1.10"
MODEL_TYPES = ("bert",)
"""The families whose modelling code of then was compared with the estimate."""

_ONLY: Mapping[str, tuple[Any, ...]] = {
    "mode": ("train", "eval"),
    "loop": ("plain",),
    "task": (None, "seq-cls", "masked-lm"),
    "attention": ("eager",),
    "precision": ("fp32", "amp-fp16"),
    "weights": (None, "fp32"),
    "optimizer": ("adamw", "adafactor", "adamw-8bit", "none"),
    "optimizer_impl": (None, "for-loop"),
    "checkpointing": ("none", "full"),
    "lora_rank": (None,),
    "quant": (None,),
    "parallel": (None,),
    "compile": (False,),
    "expandable_segments": (False,),
}
"""The values that were followed, field by field."""


def is_old(torch: object) -> bool:
    """Whether a version is the one of then: "1.10", "1.10+cu113"."""
    version = torch.partition("+")[0] if isinstance(torch, str) else ""
    return version == OLD_TORCH or version.startswith(f"{OLD_TORCH}.")


def old_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what PyTorch 1.10 left no choice in, or did by itself."""
    if not is_old(values.get("torch")):
        return {}
    return {"attention": "eager", "zero_grad": "zeros"}


def problems_of_old_torch(job: "Job") -> Iterator[str]:
    """Yield what is not followed under PyTorch 1.10."""
    if not is_old(job.torch):
        return
    for name, values in _ONLY.items():
        if (value := getattr(job, name)) not in values:
            known = " or ".join(repr(each) for each in values)
            yield f"{name} is {value!r}; under torch {OLD_TORCH} it is modelled for {known} only"
