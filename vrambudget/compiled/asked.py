"""Whether a job is compiled, for all that resolve one: what costs time is imported if it is."""

from collections.abc import Iterator, Mapping
from typing import Any

from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig
from vrambudget.errors import NotModelledError


def compiling(
    known: ModelConfig, keys: Mapping[str, Any], *, pads: bool | None = None
) -> ModelConfig:
    """Return the configuration of a model that is compiled; `pads`: see CompiledConfig."""
    from vrambudget.compiled.config import compiled_config  # noqa: PLC0415 - few jobs compile

    return compiled_config(known, keys, pads=pads)


def refuse(known: ModelConfig, job: Job) -> None:
    """Raise NotModelledError where what `compiling` returned cannot be compiled for a job."""
    known.refuse(job)  # type: ignore[attr-defined]


def compiler_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a compiled job is, unless it says otherwise: of its compiler's version."""
    if not fields.get("compile"):
        return {}
    from vrambudget.compiled.config import compiler_version  # noqa: PLC0415 - few jobs compile

    return {"torch": compiler_version()}


def original(module: Any) -> Any:
    """Return the module that torch.compile wrapped, None for any other.

    Raises NotModelledError for a backend, a mode, options or shapes that are not compiled here.
    """
    if getattr(module, "_compiled_call_impl", None) is not None:
        raise NotModelledError(
            "a module that was compiled in place, by its method compile(), is not modelled",
            hint="hand over torch.compile(module) instead of module.compile()",
        )
    if type(module).__name__ != "OptimizedModule":
        return None
    backend = module.dynamo_ctx.callback
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    for given in _not_plain(backend):
        raise NotModelledError(
            f"torch.compile with {given} is not modelled",
            hint="`vrambudget rehearse` runs any script",
        )
    return module._orig_mod


def _not_plain(backend: Any) -> Iterator[str]:
    """Yield what a backend has been given besides the defaults, in torch.compile's words."""
    name = getattr(backend, "compiler_name", None) or getattr(backend, "__name__", str(backend))
    if name != "inductor":
        yield f"backend={name!r}"
        return
    if backend.dynamic:
        yield "dynamic=True, one graph for all sizes,"
    if backend.config:
        from vrambudget.compiled.private import list_mode_options  # noqa: PLC0415 - torch is here

        modes = list_mode_options().items()
        mode = next((name for name, options in modes if options == backend.config), None)
        yield f"mode={mode!r}" if mode else f"options={backend.config}"
