"""TRL's command line and its YAML: SFTConfig, DPOConfig and ModelConfig."""

from typing import Any

from vrambudget.config.fields.adapters import ALL_LINEAR
from vrambudget.config.foreign.hugging_face import LIBRARIES
from vrambudget.config.foreign.tables import read_table

TRL = read_table("trl", LIBRARIES)
DEFAULTS: dict[str, Any] = {
    "loop": "sft",
    "block": 1024,
    "checkpointing": "full",
    "precision": "amp-bf16",
}
_OF_DPO = ("beta", "precompute_ref_log_probs", "sync_ref_model", "disable_dropout")


def finished(keys: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with what several keys say together: no adapter without use_peft.

    Without bf16 and fp16 there is no autocast, and one module in a list is that module
    (ModelConfig.__post_init__). It is DPO where there is a key that only DPOConfig has.
    """
    if keys.get("bf16") is False and not keys.get("fp16"):
        fields["precision"] = (fields.get("weights") if "quant" in fields else None) or "fp32"
    if fields.get("lora_targets") == [ALL_LINEAR]:
        fields["lora_targets"] = ALL_LINEAR
    if any(key in keys for key in _OF_DPO):
        fields["loop"] = "dpo"
    if fields["loop"] == "dpo" or (
        keys.get("packing_strategy") == "wrapped" and not keys.get("padding_free")
    ):
        fields.pop("rows", None)  # DPOTrainer lays none end to end, and wrapped rows are full
    if not keys.get("use_peft"):
        return {name: fields[name] for name in fields if not name.startswith("lora_")}
    return {"lora_dropout": 0.05, **fields}
