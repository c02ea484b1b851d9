"""The architectures, one file each; `config_class("gpt2")` imports the one that is requested.

A decoder whose layer is recorded (`recorded/`) has no code here: `vrambudget.program.decoders`.
"""

from importlib import import_module
from pathlib import Path

from vrambudget.config.model_config import ModelConfig, unknown_model_type

_CONFIG_CLASSES = {
    "gemma3": ("gemma3_images", "Gemma3Config"),
    "nanogpt": ("nanogpt", "NanoGPTConfig"),
    "titan": ("titan", "TitanConfig"),
}
"""model_type: (module, class). A new architecture is its file and its line here."""

RECORDED = Path(__file__).parent / "recorded"
"""The layers of decoders, as `tests/decoder_programs.py` writes them."""

_READ_AS = {"kimi_k2": "deepseek_v3"}
"""A model_type that transformers does not have: that of the class in its `architectures`."""


def model_types() -> list[str]:
    """Return the values of `model_type` that are modelled."""
    return sorted({*_CONFIG_CLASSES, *(path.stem for path in RECORDED.glob("*.program"))})


def config_class(model_type: str) -> type[ModelConfig]:
    """Return an architecture's configuration class. Raises NotModelledError if there is none."""
    model_type = _READ_AS.get(model_type, model_type)
    found: type[ModelConfig]
    if model_type in _CONFIG_CLASSES:
        module, name = _CONFIG_CLASSES[model_type]
        found = getattr(import_module(f"vrambudget.models.families.{module}"), name)
    elif model_type in model_types():
        found = import_module("vrambudget.program.decoders").decoder_class(model_type)
    else:
        raise unknown_model_type(model_type, model_types())
    return found
