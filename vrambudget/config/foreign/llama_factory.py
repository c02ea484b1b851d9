"""LLaMA-Factory's YAML.

Source: LLaMA-Factory, src/llamafactory/hparams/*.py; model/adapter.py and model/model_utils/
checkpointing.py (gradient checkpointing is on unless it is disabled).
"""

from typing import Any

from vrambudget.config.foreign.hugging_face import TRAINING_ARGUMENTS
from vrambudget.config.foreign.tables import read_table

LLAMA_FACTORY = read_table("llama_factory", TRAINING_ARGUMENTS)
DEFAULTS: dict[str, Any] = {
    "block": 2048,
    "checkpointing": "full",
    "lora_rank": 8,
    "lora_targets": "all-linear",
}


def finished(keys: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with what several keys say together."""
    if fields.get("lora_targets") == "all":
        fields["lora_targets"] = "all-linear"
    if keys.get("finetuning_type", "lora") != "lora":
        return {name: fields[name] for name in fields if not name.startswith("lora_")}
    if str(fields["precision"]).startswith("amp-"):  # load_model casts what is trained to float32
        fields["weights"] = str(fields["precision"]).removeprefix("amp-")
    return fields
