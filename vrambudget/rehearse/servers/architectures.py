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
# What engines read without a default, and configurations of one group leave out.
_READ = {
    "deepseek_v2": {"n_group": 1, "topk_group": 1},
    "deepseek_v3": {"n_group": 1, "topk_group": 1},
}
# The usual checkpoint of a method, of a model whose configuration says nothing (serving.
# quantization_config.USUAL).
_CHECKPOINTS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
}


def of_checkpoint(values: dict[str, Any], method: str | None) -> dict[str, Any]:
    """Return a configuration as that of the checkpoint which `--quantization` asks for."""
    usual = _CHECKPOINTS.get((method or "").removesuffix("_marlin"))
    if usual is None or values.get("quantization_config"):
        return values
    return {**values, "quantization_config": {**usual, "version": "gemm"}}


def with_architecture(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a configuration with `architectures` and a dtype. Raises VramBudgetError."""
    kind = values.get("model_type")
    if not isinstance(kind, str):
        raise VramBudgetError("this configuration has no model_type", where=where)
    usual = "".join(map(str.capitalize, kind.replace("-", "_").split("_"))) + "ForCausalLM"
    values.setdefault("architectures", [_CLASSES.get(kind, usual)])
    for key, value in _READ.get(kind, {}).items():
        values.setdefault(key, value)
    if "dtype" not in values:
        values.setdefault("torch_dtype", "bfloat16")
    return values
