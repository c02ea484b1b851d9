"""What engines read of a configuration that estimates do without: its class, and its dtype."""

from typing import Any

from vrambudget.errors import VramBudgetError

# Of transformers 5.17, models/auto/modeling_auto.py (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES): those
# whose name is not that of the type.
_CLASSES = {
    "ernie4_5": "Ernie4_5ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "opt": "OPTForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}


def with_architecture(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a configuration with `architectures` and a dtype. Raises VramBudgetError."""
    kind = values.get("model_type")
    if not isinstance(kind, str):
        raise VramBudgetError("this configuration has no model_type", where=where)
    usual = "".join(map(str.capitalize, kind.replace("-", "_").split("_"))) + "ForCausalLM"
    values.setdefault("architectures", [_CLASSES.get(kind, usual)])
    if "dtype" not in values:
        values.setdefault("torch_dtype", "bfloat16")
    return values
