"""What engines read of a configuration that estimates do without: its class, and its dtype."""

from typing import Any

from vrambudget.errors import VramBudgetError

# Of transformers 5.17, models/auto/modeling_auto.py (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES): those
# whose name is not that of the type.
_CLASSES = {
    "ernie4_5": "Ernie4_5ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "opt": "OPTForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
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
# vLLM reads in a checkpoint's files which layers GPTQ quantised, and without files takes none
# (gptq_marlin.py, maybe_update_config): all projections, as usual.
_IN_FILES = {"gptq": {"modules_in_block_to_quantize": [["_proj"]]}}


def of_checkpoint(values: dict[str, Any], method: str | None) -> dict[str, Any]:
    """Return a configuration as that of the checkpoint which it, or `--quantization`, names.

    What is read in the checkpoint's files is added, for there are none.
    """
    usual = _CHECKPOINTS.get((method or "").removesuffix("_marlin"), {})
    quantised = values.get("quantization_config") or (usual and {**usual, "version": "gemm"})
    if not quantised or not isinstance(quantised, dict):
        return values
    in_files = _IN_FILES.get(str(quantised.get("quant_method")), {})
    dtype = {"torch_dtype": "float16"} if usual else {}  # as they are published
    return {**dtype, **values, "quantization_config": {**in_files, **quantised}}


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
