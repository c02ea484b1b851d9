"""Whether a job is compiled, for all that resolve one: what costs time is imported if it is."""

from collections.abc import Mapping
from typing import Any

from vrambudget.config.model_config import ModelConfig
from vrambudget.errors import NotModelledError


def compiling(
    known: ModelConfig, keys: Mapping[str, Any], *, pads: bool | None = None
) -> ModelConfig:
    """Return the configuration of a model that is compiled; `pads`: see CompiledConfig."""
    from vrambudget.compiled.config import compiled_config  # noqa: PLC0415 - few jobs compile

    return compiled_config(known, keys, pads=pads)


def compiler_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a compiled job is, unless it says otherwise: of its compiler's version."""
    if not fields.get("compile"):
        return {}
    from vrambudget.compiled.config import compiler_version  # noqa: PLC0415 - few jobs compile

    return {"torch": compiler_version()}


def original(module: Any) -> Any:
    """Return the module that torch.compile wrapped, None for any other.

    Raises NotModelledError for other backends than Inductor, modes, options and dynamic shapes.
    """
    if type(module).__name__ != "OptimizedModule":
        return None
    backend = module.dynamo_ctx.callback
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    is_plain = getattr(backend, "compiler_name", "") == "inductor"
    if not is_plain or backend.config or backend.dynamic:
        raise NotModelledError(
            "torch.compile with another backend than inductor, a mode, options or dynamic shapes"
            " is not modelled",
            hint="`vrambudget rehearse` runs any script",
        )
    return module._orig_mod
