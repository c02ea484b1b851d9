"""TrainingArguments, PEFT's LoraConfig, BitsAndBytesConfig and from_pretrained, as a job's fields.

Source: transformers 5.17, training_args.py (TrainingArguments, OptimizerNames), trainer.py
(_OPTIMIZER_HANDLERS); PEFT 0.21, LoraConfig, utils/constants.py.
"""

from collections.abc import Mapping
from typing import Any

from vrambudget.config.fields.adapters import PEFT_TARGETS
from vrambudget.config.foreign.accelerate import FSDP, FSDP2
from vrambudget.config.foreign.deepspeed import ZERO
from vrambudget.config.foreign.meanings import Fields, Meaning, OneOf, Same, Switch, Table, several
from vrambudget.config.foreign.tables import read_table

DTYPES: Mapping[str, Fields] = {
    "float32": {"precision": "fp32"},
    "fp32": {"precision": "fp32"},
    "bfloat16": {"precision": "bf16"},
    "bf16": {"precision": "bf16"},
    "float16": {"precision": "fp16"},
    "fp16": {"precision": "fp16"},
    "auto": {},
}

WEIGHTS = OneOf(
    "weights as", {name: {"weights": of["precision"]} if of else {} for name, of in DTYPES.items()}
)
MODEL: Table = {**read_table("from_pretrained"), "torch_dtype": WEIGHTS, "dtype": WEIGHTS}
"""What from_pretrained takes."""

_GATHERED_ONCE: Fields = {**FSDP2, "reshard_after_forward": False}

_SEVERAL: dict[str, Meaning] = {
    **several(
        {
            "fsdp": OneOf(
                "FSDP as",
                {
                    "false": {},
                    "true": FSDP2,
                    "full_shard": FSDP2,
                    "full_shard auto_wrap": FSDP2,
                    "shard_grad_op": _GATHERED_ONCE,
                    "shard_grad_op auto_wrap": _GATHERED_ONCE,
                    "full_shard auto_wrap offload": {**FSDP2, "cpu_offload": True},
                },
            ),
            "ddp_bucket_cap_mb": Same("bucket_cap_mb"),
            "ddp_find_unused_parameters": Switch({"find_unused_parameters": True}),
            "ddp_static_graph": Switch({"static_graph": True}),
        }
    ),
    **{f"fsdp_config.{name}": meaning for name, meaning in FSDP.items()},
    **{f"fsdp_config.fsdp_{name}": meaning for name, meaning in FSDP.items()},
    **{f"deepspeed.zero_optimization.{name}": meaning for name, meaning in ZERO.items()},
}

TRAINING_ARGUMENTS: Table = {**read_table("training_arguments"), **_SEVERAL}
LIBRARIES: Table = {
    **TRAINING_ARGUMENTS,
    **MODEL,
    **read_table("peft"),
    **read_table("bitsandbytes"),
}
"""TrainingArguments', from_pretrained's, PEFT's and BitsAndBytesConfig's words."""


def settled(fields: Fields) -> dict[str, Any]:
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
