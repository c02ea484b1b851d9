"""What engines read of a configuration that estimates do without: its class, and its dtype."""

from typing import Any

from vrambudget.errors import VramBudgetError
from vrambudget.files import toml_beside

_KNOWN = toml_beside(__file__, "architectures.toml")


def of_checkpoint(values: dict[str, Any], method: str | None) -> dict[str, Any]:
    """Return a configuration as that of the checkpoint which it, or `--quantization`, names.

    What is read in the checkpoint's files is added, for there are none.
    """
    usual = _KNOWN["checkpoints"].get((method or "").removesuffix("_marlin"), {})
    quantised = values.get("quantization_config") or (usual and {**usual, "version": "gemm"})
    if not quantised or not isinstance(quantised, dict):
        return values
    in_files = _KNOWN["in_files"].get(str(quantised.get("quant_method")), {})
    dtype = {"torch_dtype": "float16"} if usual else {}  # as they are published
    return {**dtype, **values, "quantization_config": {**in_files, **quantised}}


def with_architecture(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a configuration with `architectures` and a dtype. Raises VramBudgetError."""
    kind = values.get("model_type")
    if not isinstance(kind, str):
        raise VramBudgetError("this configuration has no model_type", where=where)
    usual = "".join(map(str.capitalize, kind.replace("-", "_").split("_"))) + "ForCausalLM"
    values.setdefault("architectures", [_KNOWN["classes"].get(kind, usual)])
    for key, value in _KNOWN["read"].get(kind, {}).items():
        values.setdefault(key, value)
    if "dtype" not in values:
        values.setdefault("torch_dtype", "bfloat16")
    return values
