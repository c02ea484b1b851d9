"""What torchtune's keys say together: a model's name, and the modules of its adapters.

Source: torchtune 0.6, recipes/configs. Its models are its own code: what is estimated are the same
models as transformers has them.
"""

from typing import Any

_MODULES = {"output_proj": "o_proj"}
_MLP = ("gate_proj", "up_proj", "down_proj")


def model_of(component: str) -> str:
    """Return a model's name: torchtune.models.llama3_1.lora_llama3_1_8b is llama3_1_8b."""
    builder = component.rpartition(".")[2]
    return builder.removeprefix("q").removeprefix("lora_") if "lora_" in builder else builder


def finished(keys: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the adapters' modules, and what the model's builder says."""
    if "lora_" not in str(keys.get("model._component_", "")):
        return fields
    named = keys.get("model.lora_attn_modules") or ()
    modules = [_MODULES.get(name, name) for name in dict.fromkeys(named)]
    modules += _MLP if keys.get("model.apply_lora_to_mlp") else ()
    if modules:
        fields["lora_targets"] = tuple(modules)
    if ".qlora_" in str(keys["model._component_"]):
        fields["quant"] = "nf4"
    return fields
