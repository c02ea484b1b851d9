"""The LoRA adapter of a live model, as PEFT added it.

Not modelled: everything but plain LoRA on linear layers: DoRA, biases, other ranks for some
modules, fully trained modules (except a classifier's head, which task_type SEQ_CLS trains), tokens,
several adapters at once.
"""

from collections.abc import Mapping
from typing import Any

from vrambudget.errors import NotModelledError

LORA_PARTS = {"lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"}
LORA_PARTS |= {"modules_to_save"}
"""Parts of the names of an adapter's own parameters."""

_PLAIN: Mapping[str, object] = {
    "bias": "none",
    "use_dora": False,
    "rank_pattern": {},
    "layer_replication": None,
    "target_parameters": None,
    "trainable_token_indices": None,
    "use_qalora": False,
    "lora_bias": False,
}
"""What decides memory in PEFT's LoraConfig, with the values that are modelled."""


def read_lora(model: Any, adapters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the job's LoRA fields; none if the model has no adapter."""
    if not adapters:
        return {}
    if len(adapters) > 1:
        raise NotModelledError(f"{len(adapters)} adapters at once: {', '.join(adapters)}")
    (config,) = adapters.values()
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if kind != "LORA":
        raise NotModelledError(f"an adapter of the kind {kind}", hint="modelled is LoRA")
    heads = ["classifier", "score"] if _classifies(model) else None  # what SEQ_CLS makes of None
    for name, plain in {**_PLAIN, "modules_to_save": heads}.items():
        value = getattr(config, name, plain)
        if value != plain and (value or plain):
            raise NotModelledError(
                f"LoRA with {name} = {value!r}", hint=f"modelled is {name} = {plain!r}"
            )
    targets = {
        name.rpartition(".")[2] for name, module in model.named_modules() if _is_adapter(module)
    }
    return {
        "lora_rank": int(config.r),
        "lora_targets": tuple(sorted(targets)),
        "lora_dropout": float(config.lora_dropout),
    }


def _classifies(model: Any) -> bool:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return type(base).__name__.endswith("ForSequenceClassification")


def _is_adapter(module: Any) -> bool:
    return bool(getattr(module, "lora_A", None)) and hasattr(module, "base_layer")
