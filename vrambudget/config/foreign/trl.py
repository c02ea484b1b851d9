"""TRL's command line and its YAML: SFTConfig, DPOConfig and ModelConfig.

Source: TRL 1.x, trainer/sft_config.py, trainer/model_config.py, scripts/utils.py.
"""

from typing import Any

from vrambudget.config.fields.adapters import ALL_LINEAR
from vrambudget.config.foreign.hugging_face import (
    BITSANDBYTES,
    LORA_RANK,
    MODEL,
    PEFT,
    TRAINING_ARGUMENTS,
)
from vrambudget.config.foreign.meanings import (
    Model,
    Same,
    Switch,
    Table,
    Uncounted,
    ignored,
)

_PACKED = {"rows": "packed"}

TRL: Table = {
    **TRAINING_ARGUMENTS,
    **MODEL,
    **PEFT,
    **BITSANDBYTES,
    "model_name_or_path": Model(),
    "use_peft": Switch({}, {"lora_rank": LORA_RANK}),
    "max_length": Same("block"),
    "max_seq_length": Same("block"),
    "packing": Switch(_PACKED, {"loop": "sft"}),
    "padding_free": Switch(_PACKED, {"loop": "sft"}),
    "activation_offloading": Uncounted("activations on the host", saves=True),
    "precompute_ref_log_probs": Same("precompute_ref_log_probs"),
    "sync_ref_model": Uncounted("a reference model that follows the trained one"),
    "use_weighting": Uncounted("weights of pairs"),
    "ld_alpha": Uncounted("LD-DPO's lengths", flag=False),
    **ignored(
        "dataset_name dataset_config dataset_train_split dataset_test_split dataset_text_field"
        " dataset_kwargs dataset_num_proc eos_token pad_token model_revision chat_template_path"
        " truncation_mode packing_strategy pad_to_multiple_of loss_type datasets beta"
        " disable_dropout precompute_ref_batch_size"
    ),
    **ignored(
        "shuffle_dataset completion_only_loss assistant_only_loss dataset_streaming eval_packing",
        flag=True,
    ),
}

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
