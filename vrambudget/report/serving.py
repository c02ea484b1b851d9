"""A vLLM server's report: what takes the GPU, what its cache holds, and what its log will say.

Where something measured or assumed is part of a number, the number is a range.
"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from vrambudget.config.gpus import Gpu
from vrambudget.serving.options import ServeOptions
from vrambudget.serving.outside import range_of
from vrambudget.serving.quantised import Quantisation
from vrambudget.serving.sglang import SglangServing
from vrambudget.serving.starting import USUAL_CONTEXT, StartingChange, typed
from vrambudget.serving.vllm import Serving
from vrambudget.units import gib, spread

_MERGED = "as loaded: merged projections"
_CONTEXTS = (2048, 8192, 32768, 131072)


def served(
    model: str,
    gpu: Gpu,
    options: ServeOptions,
    found: Serving,
    context: int | None,
    *,
    quantised: Quantisation | None,
) -> str:
    """Return the report as text."""
    gpus = options.tensor_parallel_size * options.pipeline_parallel_size
    many = f"{gpus} x {gpu.name}, each" if gpus > 1 else gpu.name
    length, version = context or found.max_model_len, f"vLLM {options.engine_version}"
    error = f"DOES NOT START: {found.error}"
    held = min(context or USUAL_CONTEXT, found.longest_request)
    if options.max_model_len is None and held and "max seq len" in error:
        whole = f"vLLM's own --max-model-len, all {found.max_model_len:,} tokens of the model"
        error = f"DOES NOT START with {whole}; add --max-model-len {held}\nvLLM's: {found.error}"
    lines = [
        error if found.error else starts(found, length, version),
        "",
        f"{model} on {many} {gib(gpu.capacity_bytes)}, by the rules of {version}",
        "",
        *_parts(gpu, options, found, quantised),
        "",
        "requests at once   held by the cache",
        *contexts(found, found.max_model_len, context),
        *log_lines(found),
    ]
    return "\n".join(lines)


def starts(found: Serving | SglangServing, length: int, engine: str) -> str:
    """Return the verdict of a server that starts, and of which version that is known."""
    held = found.requests(length)
    requests = "request" if held == (1, 1) else "requests"
    return f"STARTS: {between(*held)} {requests} of {length:,} tokens at once ({engine})"


def _parts(
    gpu: Gpu, options: ServeOptions, found: Serving, quantised: Quantisation | None
) -> Iterator[str]:
    low, high = found.cache_bytes
    parts = [
        ("weights", gib(found.weights_bytes), quantised.description if quantised else _MERGED),
        (
            "activations",
            gib(found.activations_bytes),
            f"a step of {found.max_num_batched_tokens:,} tokens, {found.max_num_seqs:,} sampled",
        ),
        ("outside PyTorch", spread(*found.outside_bytes), _measured(gpu, options)),
        *_of_newer(found),
        ("KV cache", spread(low, high), _blocks(options, found)),
        ("may take", *_may_take(options, found)),
        ("CUDA graphs", *_graphs(found)),
        ("capacity", gib(gpu.capacity_bytes), "as the driver reports it"),
    ]
    return rows(parts)


def _of_newer(found: Serving) -> Iterator[tuple[str, str, str]]:
    if found.token_counts_bytes:
        yield "token counts", gib(found.token_counts_bytes), "of each request, for penalties"
    if found.expected_graphs_bytes != (0, 0):
        yield "graphs expected", spread(*found.expected_graphs_bytes), "CUDA graphs, as measured"


def start_lines(
    others: Iterable[StartingChange], model: str, gpu: Gpu, options: ServeOptions
) -> Iterator[str]:
    """Yield what would start in its place, with the command; nothing where nothing would."""
    for i, other in enumerate(others):
        if not i:
            yield ""
            yield "what starts:"
        length = min(other.serving.max_model_len, USUAL_CONTEXT)
        held = between(*other.serving.requests(length))
        words = (model, "--gpu", gpu.key or gpu.name, *typed(options, other.change))
        command = f"vrambudget serve {shlex.join(words)}"
        made = (
            ", of a checkpoint in AWQ" if other.change.get("quantization") == "awq_marlin" else ""
        )
        yield f"  {held} request{'s' * (held != '1')} of {length:,} tokens{made}: {command}"


def _measured(gpu: Gpu, options: ServeOptions) -> str:
    tp, pp = options.tensor_parallel_size, options.pipeline_parallel_size
    what = "kernels, libraries" + (", NCCL" if tp > 1 else "")
    return f"measured on {range_of(gpu, tp, pp)[1]}: {what}"


def _may_take(options: ServeOptions, found: Serving) -> tuple[str, str]:
    if options.kv_cache_memory_bytes is not None:
        used_bytes = found.weights_bytes + found.activations_bytes + options.kv_cache_memory_bytes
        return gib(used_bytes), "with --kv-cache-memory-bytes, whatever the GPU has"
    return gib(found.may_take_bytes), f"--gpu-memory-utilization {options.utilization}"


def _graphs(found: Serving) -> tuple[str, str]:
    if found.graphs_bytes == (0, 0):
        return gib(0), "none with --enforce-eager"
    return spread(*found.graphs_bytes), "measured: on top; none with --enforce-eager"


def _blocks(options: ServeOptions, found: Serving) -> str:
    dtype = "" if options.kv_cache_dtype == "auto" else f" of {options.kv_cache_dtype}"
    groups = len(found.groups.windows)
    shared = f", {groups} groups of layers" if groups > 1 else ""
    return f"{between(*found.blocks)} blocks of {found.block_size} tokens{dtype}{shared}"


def contexts(found: Serving | SglangServing, longest: int, context: int | None) -> Iterator[str]:
    """Yield how many requests of the usual lengths are held at once."""
    lengths = {n for n in (*_CONTEXTS, context) if n is not None and n <= longest}
    for length in sorted(lengths | {longest}):
        yield f"{length:>9,} tokens   {between(*found.requests(length))}"


def log_lines(found: Serving) -> Iterator[str]:
    """Yield the lines that vLLM prints as it starts, with ranges where it measures."""
    if found.error is not None:
        return
    times = (f"{times:.2f}x" for times in found.concurrency)
    yield ""
    yield "vLLM's log will say about:"
    yield f"  Model loading took {found.weights_bytes / 2**30:.2f} GiB memory"
    yield f"  Available KV cache memory: {spread(*found.cache_bytes)}"
    yield f"  GPU KV cache size: {between(*found.tokens)} tokens"
    if found.first_start_bytes:
        yield f"    at a first start: {between(*found.first_start_tokens)}, while it compiles"
    yield (
        f"  Maximum concurrency for {found.max_model_len:,} tokens per request:"
        f" {' to '.join(dict.fromkeys(times))}"
    )


def as_values(found: Serving, version: str, context: int | None) -> dict[str, Any]:
    """Return the result for JSON: bytes, and pairs for ranges."""
    length = context or found.max_model_len
    return {
        **asdict(found),
        "engine": f"vllm {version}",
        "starts": found.error is None,
        "context": length,
        "requests": found.requests(length),
    }


def rows(parts: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield a line for each part: its name, how much it is, and how that is computed."""
    return (f"{name:<16}{size:>20}  {why}" for name, size, why in parts)


def between(low: int, high: int) -> str:
    """Return a range of numbers."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
