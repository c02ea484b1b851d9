"""What would start where a vLLM server does not: the same model with one or two options changed."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from vrambudget.config.gpus import Gpu
from vrambudget.config.settings import Settings
from vrambudget.errors import VramBudgetError
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.serving.options import ServeOptions
from vrambudget.serving.quantised import Quantisation
from vrambudget.serving.quantization_config import quantisation_of
from vrambudget.serving.vllm import Serving, serve

_USUAL_CONTEXT = 8192
_FP8 = (8, 9)  # the first compute capability with products in fp8
_MOST_GPUS = 8


class Alternative(NamedTuple):
    """Options that start; `change`: what they change, by name."""

    change: Mapping[str, Any]
    serving: Serving

    @property
    def words(self) -> str:
        """Return the changed options as they are typed."""
        return typed(self.change)


def typed(options: Mapping[str, Any]) -> str:
    """Return options as they are typed; a switch has no value, and one that is off is left out."""
    words = []
    for name, value in options.items():
        if value is True:
            words.append(f"--{name.replace('_', '-')}")
        elif value not in (None, False):
            words.append(f"--{name.replace('_', '-')} {value}")
    return " ".join(words)


def alternatives(
    config: DecoderConfig, gpu: Gpu, options: ServeOptions, quantised: Quantisation | None
) -> Iterator[Alternative]:
    """Yield what starts: first the same weights, then smaller ones, then more GPUs."""
    changes: list[dict[str, Any]] = [{}]
    if options.kv_cache_dtype == "auto":
        changes.append({"kv_cache_dtype": "fp8"})
    if quantised is None:
        changes.append({"quantization": "awq"})
        if gpu.compute_capability >= _FP8:
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
) -> Alternative | None:
    """Return the change where it starts, with a shorter longest request if it needs one."""
    method = change.get("quantization")
    try:
        how = quantisation_of(None, method, gpu, where="") if method else quantised
        serving = serve(config, gpu, options.changed(change), how)
        if serving.cache_bytes[0] > 0 and serving.longest_request < serving.max_model_len:
            length = min(serving.longest_request, _USUAL_CONTEXT)
            change = {**change, "max_model_len": length or 1}
            serving = serve(config, gpu, options.changed(change), how)
    except VramBudgetError:
        return None
    starts = serving.cache_bytes[0] > 0 and serving.longest_request >= serving.max_model_len
    holds = starts and serving.requests(min(serving.max_model_len, _USUAL_CONTEXT))[0]
    return Alternative(change, serving) if holds else None


def rehearsal(model: object, gpu: object, engine: str, options: Settings) -> str | None:
    """Return the command that rehearses the engine's own start; None: it cannot be written.

    `gpu`: a name as typed; the engine's options are those that were given.
    """
    programs = {"vllm": "vllm serve", "sglang": "python -m sglang.launch_server --model-path"}
    if engine not in programs or not isinstance(model, str) or not isinstance(gpu, str):
        return None
    given = {n: v for n, v in options.model_dump().items() if n in options.model_fields_set}
    given.pop("engine", None)
    words = (programs[engine], model, typed(given))
    card = f'"{gpu}"' if " " in gpu else gpu
    return f"vrambudget rehearse --gpu {card} -- {' '.join(filter(None, words))}"
