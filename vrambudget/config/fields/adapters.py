"""What is trained and what is not: LoRA, frozen parts, quantised weights."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from vrambudget.config.settings import Field, Probability, Settings, Size
from vrambudget.declared import Before

Quant = Literal["nf4", "int8"]
ALL_LINEAR: Literal["all-linear"] = "all-linear"
_MODULE_NAME = re.compile(r"[A-Za-z_][\w.]*")


def _lora_targets(value: Any) -> Any:
    """Return "all-linear" or a tuple of names, from a list or from "q_proj,v_proj"."""
    if value == ALL_LINEAR:
        return value
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(map(_is_module_name, names)):
        raise ValueError(
            f"it should be {ALL_LINEAR!r} or names of modules, for example q_proj,v_proj"
        )
    return tuple(names)


def _module_names(value: Any) -> Any:
    """Return a tuple of names from a list or from "transformer.wte,transformer.h.0"."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(map(_is_module_name, names)):
        raise ValueError("it should be names of modules, for example transformer.wte")
    return tuple(names)


def _is_module_name(name: object) -> bool:
    return isinstance(name, str) and _MODULE_NAME.fullmatch(name) is not None


_QUERY_AND_VALUE = ("q_proj", "v_proj")

PEFT_TARGETS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("bart", "gemma", "gemma2", "gemma3_text", "gpt_neo", "gptj"), _QUERY_AND_VALUE
    ),
    **dict.fromkeys(("llama", "llama4", "mistral", "mixtral", "opt"), _QUERY_AND_VALUE),
    **dict.fromkeys(("qwen2", "qwen3", "stablelm"), _QUERY_AND_VALUE),
    **dict.fromkeys(("bert", "electra", "roberta", "xlm-roberta"), ("query", "value")),
    **dict.fromkeys(("bloom", "falcon", "gpt_neox"), ("query_key_value",)),
    **dict.fromkeys(("mt5", "t5"), ("q", "v")),
    "deberta-v2": ("query_proj", "value_proj"),
    "gpt2": ("c_attn",),
    "gpt_bigcode": ("c_attn",),
    "phi": (*_QUERY_AND_VALUE, "fc1", "fc2"),
}
"""By model_type: the modules that PEFT adapts where none are named.

Source: peft/utils/constants.py (TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING), PEFT 0.21.2.
"""

ModuleNames = Annotated[tuple[str, ...], Before(_module_names)]
LoraTargets = Annotated[Literal["all-linear"] | tuple[str, ...], Before(_lora_targets)]


class Adapters(Settings, heading="adapters and quantisation"):
    """What is trained, and what lies in 4 or 8 bits."""

    lora_rank: Annotated[Size, Field(le=2**16)] | None = Field(
        None, description="train LoRA adapters of this rank instead of the weights, as PEFT does"
    )
    lora_targets: LoraTargets = Field(
        ALL_LINEAR,
        description="modules that get an adapter: all-linear, or names, for example q_proj,v_proj",
    )
    lora_dropout: Probability = Field(
        0.0, description="dropout probability of the adapters' inputs"
    )
    freeze: ModuleNames = Field(
        (), description="modules or parameters that are not trained, for example transformer.wte"
    )
    quant: Quant | None = Field(
        None,
        description="4-bit weights in linear layers, by bitsandbytes (with --lora-rank: QLoRA), or"
        " 8-bit ones (load_in_8bit)",
    )
    double_quant: bool = Field(
        default=True, description="quantise the scales of 4-bit blocks too, as QLoRA does"
    )
