"""Which weights, layout and cache of a vLLM server hold the most requests on some GPUs.

Each row is a start by the rules of `serving.vllm`, and its command can be rehearsed.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vrambudget.config.gpus import Gpu
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.serving.gguf_known import find_served
from vrambudget.serving.options import ServeOptions
from vrambudget.serving.quantization_config import cache_in_fp8, quantisation_of
from vrambudget.serving.starting import FP8, USUAL_CONTEXT, rehearsal, server_words, with_rehearsal
from vrambudget.serving.vllm import Serving, serve
from vrambudget.serving.weights import load_decoder

_WEIGHTS: tuple[str | None, ...] = (None, "fp8", "awq_marlin")


@dataclass(frozen=True, slots=True)
class Served:
    """One way to serve; numbers are the least of their ranges."""

    weights: str  # "as they are", "fp8 (as they are loaded)", "AWQ (its checkpoint)"
    cache: str
    engines: int  # that share requests
    tensor_parallel_size: int
    pipeline_parallel_size: int
    requests: int  # of `context` tokens at once, of all engines
    context: int
    longest_request: int
    tokens: int  # of one engine's cache
    weights_bytes: int  # on each GPU
    command: str
    rehearsal: str


def serving_plan(model: str, gpu: Gpu, name: str, gpus: int, context: int | None) -> list[Served]:
    """Return what starts with `gpus` of them, most requests first. Raises VramBudgetError.

    `name`: the GPU as typed. Of equal numbers of requests, what changes less goes first.
    """
    found = find_served(model)
    try:
        config = load_decoder(found.values, where=found.where)
    except NotModelledError as error:
        usual = ServeOptions.parse({"tensor_parallel_size": gpus} if gpus > 1 else {})
        raise with_rehearsal(error, rehearsal(model, name, "vllm", usual)) from error
    length = context or min(USUAL_CONTEXT, config.max_position_embeddings)
    if not 1 <= length <= config.max_position_embeddings:
        raise VramBudgetError(
            f"context is {length}; the model has {config.max_position_embeddings} positions",
            where="--context",
        )
    quantisation = found.values.get("quantization_config")
    rows = []
    for given in _ways(config, gpu, gpus, is_quantised=bool(quantisation)):
        cache = {"kv_cache_dtype": "fp8"} if cache_in_fp8(quantisation) else {}
        options = ServeOptions.parse({"max_model_len": length, **cache, **given})
        try:
            how = quantisation_of(quantisation, options.quantization, gpu, where=found.where)
            serving = serve(config, gpu, options, how)
        except NotModelledError:
            if not given:
                raise
            continue
        except VramBudgetError:  # heads that it does not divide, kernels that the GPU lacks
            continue
        shared = options.tensor_parallel_size * options.pipeline_parallel_size
        row = _row(model, name, options, serving, gpus // shared)
        if row.requests:
            rows.append(row)
    return sorted(rows, key=lambda row: -row.requests)


def _ways(
    config: DecoderConfig, gpu: Gpu, gpus: int, *, is_quantised: bool
) -> Iterator[dict[str, Any]]:
    """Yield options: weights, cache and layouts, those that change least first."""
    for quantization in (None,) if is_quantised else _WEIGHTS:
        if quantization == "fp8" and gpu.compute_capability < FP8:
            continue
        for cache in ("auto", "fp8"):
            for tp in (n for n in range(1, gpus + 1) if gpus % n == 0):
                for pp in (n for n in range(1, gpus // tp + 1) if gpus // tp % n == 0):
                    if config.num_attention_heads % tp or pp > config.num_hidden_layers:
                        continue
                    values = {
                        "quantization": quantization,
                        "kv_cache_dtype": None if cache == "auto" else cache,
                        "tensor_parallel_size": tp if tp > 1 else None,
                        "pipeline_parallel_size": pp if pp > 1 else None,
                    }
                    yield {key: value for key, value in values.items() if value is not None}


def _row(model: str, name: str, options: ServeOptions, serving: Serving, engines: int) -> Served:
    length = serving.max_model_len
    words = {
        None: "as they are",
        "fp8": "fp8, as they are loaded",
        "awq_marlin": "AWQ, a checkpoint",
    }
    return Served(
        weights=words.get(options.quantization, str(options.quantization)),
        cache="16 bit" if options.kv_cache_dtype == "auto" else options.kv_cache_dtype,
        engines=engines,
        tensor_parallel_size=options.tensor_parallel_size,
        pipeline_parallel_size=options.pipeline_parallel_size,
        requests=0 if serving.error else engines * serving.requests(length)[0],
        context=length,
        longest_request=serving.longest_request,
        tokens=serving.tokens[0],
        weights_bytes=serving.weights_bytes,
        command=shlex.join(server_words(model, "vllm", options)),
        rehearsal=rehearsal(model, name, "vllm", options) or "",
    )
