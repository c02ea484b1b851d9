"""What would start where a vLLM server does not: the same model with one or two options changed."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from vrambudget.config.gpus import Gpu
from vrambudget.config.settings import Settings
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.serving.options import ServeOptions
from vrambudget.serving.quantised import Quantisation
from vrambudget.serving.quantization_config import quantisation_of
from vrambudget.serving.vllm import Serving, serve

USUAL_CONTEXT = 8192
_USUAL_PART = 0.9
_PROGRAMS = {
    "vllm": ("vllm", "serve"),
    "sglang": ("python", "-m", "sglang.launch_server", "--model-path"),
}
FP8 = (8, 9)  # the first compute capability with products in fp8
_MOST_GPUS = 8


class StartingChange(NamedTuple):
    """Options that start; `change`: what they change, by name."""

    change: Mapping[str, Any]
    serving: Serving


def typed(options: Settings, change: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return the options that were given, or are changed, as they are typed.

    A switch has no value, and one that is off is left out.
    """
    given = {n: v for n, v in options.model_dump().items() if n in options.model_fields_set}
    given = {**given, **(change or {})}
    for name in ("engine", "engine_version"):
        given.pop(name, None)
    words: list[str] = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words += [option, str(value)]
    return tuple(words)


def alternatives(
    config: DecoderConfig, gpu: Gpu, options: ServeOptions, quantised: Quantisation | None
) -> Iterator[StartingChange]:
    """Yield what starts: first the same weights, then smaller ones, then more GPUs."""
    changes: list[dict[str, Any]] = [{}]
    if (options.gpu_memory_utilization or 0) > _USUAL_PART:
        changes.append({"gpu_memory_utilization": _USUAL_PART})
    if options.kv_cache_dtype == "auto":
        changes.append({"kv_cache_dtype": "fp8"})
    if quantised is None:
        changes.append({"quantization": "awq_marlin"})
        if gpu.compute_capability >= FP8:
            changes.append({"quantization": "fp8"})
    shared = options.tensor_parallel_size
    while (shared := 2 * shared) <= _MOST_GPUS:
        changes.append({"tensor_parallel_size": shared})
    for change in changes:
        if (found := _tried(config, gpu, options, quantised, change)) is not None:
            yield found
            if "tensor_parallel_size" in change:
                return


def _tried(
    config: DecoderConfig,
    gpu: Gpu,
    options: ServeOptions,
    quantised: Quantisation | None,
    change: dict[str, Any],
) -> StartingChange | None:
    """Return the change where it starts, with a shorter longest request if it needs one."""
    method = change.get("quantization")
    try:
        how = quantisation_of(None, method, gpu, where="") if method else quantised
        serving = serve(config, gpu, options.changed(change), how)
        if serving.lacks_states and serving.blocks[0]:
            change = {**change, "max_num_seqs": serving.blocks[0]}
            serving = serve(config, gpu, options.changed(change), how)
        if 0 < serving.longest_request < serving.max_model_len:
            length = min(serving.longest_request, USUAL_CONTEXT)
            change = {**change, "max_model_len": length}
            serving = serve(config, gpu, options.changed(change), how)
    except VramBudgetError:
        return None
    holds = serving.requests(min(serving.max_model_len, USUAL_CONTEXT))[0]
    return StartingChange(change, serving) if holds and serving.error is None else None


def server_words(model: str, engine: str, options: Settings) -> tuple[str, ...]:
    """Return the engine's own command, with the options that were given."""
    return (*_PROGRAMS[engine], model, *typed(options))


def rehearsal(model: object, gpu: object, engine: str, options: Settings) -> str | None:
    """Return the command that rehearses the engine's own start; None: it cannot be written.

    `gpu`: a name as typed; the engine's options are those that were given.
    """
    if engine not in _PROGRAMS or not isinstance(model, str) or not isinstance(gpu, str):
        return None
    words = server_words(model, engine, options)
    return f"vrambudget rehearse --gpu {shlex.quote(gpu)} -- {shlex.join(words)}"


def with_rehearsal(error: NotModelledError, command: str | None) -> NotModelledError:
    """Return the error with the command that answers without rules."""
    if command is None:
        return error
    hints = (f"the engine's own start answers (Linux, no GPU needed): {command}", error.hint)
    hint = "; ".join(filter(None, hints))
    return NotModelledError(error.message, where=error.where, hint=hint)
