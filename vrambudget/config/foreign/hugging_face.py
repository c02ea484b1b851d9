"""What several keys say together: TrainingArguments', PEFT's, TRL's and LLaMA-Factory's.

Source: transformers 5.17, training_args.py; PEFT 0.21, utils/constants.py; TRL 1.16,
trainer/model_config.py (ModelConfig.__post_init__); LLaMA-Factory, model/adapter.py.
"""

from typing import Any

from vrambudget.config.fields.adapters import ALL_LINEAR, PEFT_TARGETS
from vrambudget.config.foreign.meanings import Fields

_OF_DPO = ("beta", "precompute_ref_log_probs", "sync_ref_model", "disable_dropout")


def completed(fields: Fields) -> dict[str, Any]:
    """Return the fields with the weights' dtype where it is not the precision's own.

    Without autocast the precision is that of the weights; weights in 4 bits are loaded in the dtype
    of their products. Where nothing is evaluated, its batch is left out.
    """
    rest = {name: value for name, value in fields.items() if name != "weights"}
    if "eval_batches" not in rest:
        rest.pop("eval_batch", None)
    weights, precision = fields.get("weights"), str(fields.get("precision"))
    if weights is None or "quant" in fields:
        return rest
    if not precision.startswith("amp-"):
        return {**rest, "precision": weights}
    return rest if weights == "fp32" else {**rest, "weights": weights}


def with_default_targets(fields: Fields, assumed: Fields, family: str) -> Fields:
    """Return the fields with the modules that PEFT adapts in this family, if none are named."""
    if "lora_rank" not in fields or "lora_targets" in {**assumed, **fields}:
        return fields
    targets = PEFT_TARGETS.get(family)
    return fields if targets is None else {**fields, "lora_targets": targets}


def of_trl(keys: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with what TRL makes of several keys: no adapter without use_peft.

    Without bf16 and fp16 there is no autocast, and one module in a list is that module. It is DPO
    where there is a key that only DPOConfig has.
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
        return _without_adapter(fields)
    return {"lora_dropout": 0.05, **fields}


def of_llama_factory(keys: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with what LLaMA-Factory makes of several keys."""
    if fields.get("lora_targets") == "all":
        fields["lora_targets"] = ALL_LINEAR
    if keys.get("finetuning_type", "lora") != "lora":
        return _without_adapter(fields)
    if str(fields["precision"]).startswith("amp-"):  # load_model casts what is trained to float32
        fields["weights"] = str(fields["precision"]).removeprefix("amp-")
    return fields


def _without_adapter(fields: Fields) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if not name.startswith("lora_")}
