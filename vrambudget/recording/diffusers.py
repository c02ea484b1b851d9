"""Components of a pipeline of diffusers, of their real sizes and without weights.

Each is made by its own class from its card's configuration, on the meta device.
"""

from typing import Any

import torch

from vrambudget.errors import NotModelledError

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_KEPT_IN_FLOAT32 = "_keep_in_fp32_modules"


def libraries() -> tuple[Any, Any]:
    """Return diffusers and transformers. Raises NotModelledError where they are missing."""
    try:
        import diffusers  # noqa: PLC0415 - an extra
        import transformers  # noqa: PLC0415
    except ImportError as error:
        raise NotModelledError(
            f"pipelines are traced by diffusers' own code, which is not installed ({error})",
            hint="pip install torch diffusers transformers peft",
        ) from error
    diffusers.utils.logging.set_verbosity_error()
    transformers.logging.set_verbosity_error()
    return diffusers, transformers


def built(keys: dict[str, Any], *, where: str, dtype: str, cast: bool = False) -> Any:
    """Return what a component's keys make: `class` and its configuration.

    `cast`: in this type whatever its own precision is.

    Raises NotModelledError for a class that the libraries have not.
    """
    diffusers, transformers = libraries()
    config: dict[str, Any] = {
        key: None if value == "null" else value for key, value in keys.items()
    }
    library, _, word = str(config.pop("class", "")).partition(".")
    config.pop("program", None)
    own = str(config.pop("precision", dtype))
    dtype = dtype if cast else own
    found = getattr({"diffusers": diffusers, "transformers": transformers}.get(library), word, None)
    if found is None:
        raise NotModelledError(
            f"no class {word or 'at all'} of {library or 'a library'} makes this component",
            where=where,
            hint='a component names its class: "_class_name" in its config.json',
        )
    if not issubclass(found, torch.nn.Module):
        return found.from_config(config)
    with torch.device("meta"):
        if library == "transformers":
            module = found(found.config_class(**config))
        else:
            module = found.from_config(config)
    return _cast(module.eval(), TYPES[dtype])


def _cast(module: Any, dtype: torch.dtype) -> Any:
    """Cast weights as from_pretrained(torch_dtype=) does: some modules stay in float32."""
    kept = getattr(module, _KEPT_IN_FLOAT32, None) or () if dtype is torch.float16 else ()
    kept = kept or (getattr(module, _KEPT_IN_FLOAT32, None) or () if _is_diffusers(module) else ())
    for name, x in (*module.named_parameters(), *module.named_buffers()):
        if x.is_floating_point() and not any(part in name.split(".") for part in kept):
            x.data = x.data.to(dtype)
    return module


def _is_diffusers(module: Any) -> bool:
    return type(module).__module__.startswith("diffusers.")


def accepted(diffusers: Any, own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments for the pipeline's class, with those that have no default as None."""
    import inspect  # noqa: PLC0415

    asked = inspect.signature(getattr(diffusers, own["pipeline"]).__init__).parameters
    needed = {
        name: None
        for name, one in asked.items()
        if one.default is inspect.Parameter.empty and name != "self"
    }
    return {**needed, **given, **own["options"]}
