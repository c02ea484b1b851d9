"""The reports of SGLang's and TGI's servers: what takes the card, what the log says.

Where something measured or assumed is part of a number, the number is a range.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from vrambudget.config.gpus import Gpu
from vrambudget.report.serving import between, gib, rows, spread
from vrambudget.serving.options import TgiOptions
from vrambudget.serving.quantised import Quantisation
from vrambudget.serving.sglang import OUTSIDE, SglangServing
from vrambudget.serving.sglang import VERSION as SGLANG
from vrambudget.serving.tgi import VERSION as TGI
from vrambudget.serving.tgi import WIGGLE_ROOM, TgiServing

_CONTEXTS = (2048, 8192, 32768, 131072)
_SEGMENTS = "segments that PyTorch reserves for them"


def sglang_report(
    model: str,
    gpu: Gpu,
    found: SglangServing,
    context: int | None,
    quantised: Quantisation | None = None,
) -> str:
    """Return what SGLang does with a card."""
    length = context or found.context_length
    verdict = f"STARTS: {between(*found.requests(length))} requests of {length:,} tokens at once"
    if not found.starts:
        verdict = (
            "DOES NOT START: Not enough memory. Please try to increase --mem-fraction-static."
            f" Current value: {found.fraction}"
        )
    default = "SGLang's default for the GPU" if found.is_default else "as given"
    parts = [
        ("free before", spread(*found.before_bytes), "the GPU without the driver's context"),
        ("weights", gib(found.weights_bytes), quantised.description if quantised else _SEGMENTS),
        ("outside PyTorch", spread(*OUTSIDE), "measured: as weights are loaded"),
        ("token pool", spread(*found.pool_bytes), f"{found.cell_bytes:,} bytes a token"),
        ("static fraction", str(found.fraction), default),
        ("capacity", gib(gpu.capacity_bytes), "as the driver reports it"),
    ]
    return "\n".join(
        [
            verdict,
            "",
            f"{model} on {gpu.name}, by the rules of SGLang {SGLANG}",
            *_of_the_default(found),
            "",
            *rows(parts),
            "",
            "requests at once   held by the pool",
            *_contexts(found, found.context_length, context),
            "",
            "SGLang's log will say about:",
            f"  Load weight end. mem usage={found.weights_bytes / 2**30:.2f} GB.",
            f"  KV Cache is allocated. #tokens: {between(*found.tokens)}",
            f"  max_total_num_tokens={between(*found.tokens)}, chunked_prefill_size={found.chunk}",
        ]
    )


def _of_the_default(found: SglangServing) -> Iterator[str]:
    if found.is_default and not found.knows_total:
        yield "note: the default fraction comes from nvidia-smi's total, which is taken as the"
        yield "  driver's: it may be a hundredth more; --mem-fraction-static says it"


def _contexts(
    found: SglangServing | TgiServing, longest: int, context: int | None
) -> Iterator[str]:
    lengths = {n for n in (*_CONTEXTS, context) if n and n <= longest}
    for length in sorted(lengths | {longest}):
        yield f"{length:>9,} tokens   {between(*found.requests(length))}"


def sglang_values(found: SglangServing, context: int | None) -> dict[str, Any]:
    """Return the result for JSON: bytes, and pairs for ranges."""
    length = context or found.context_length
    return {
        **asdict(found),
        "engine": f"sglang {SGLANG}",
        "starts": found.starts,
        "longest_request": min(found.tokens[0], found.context_length),
        "max_model_len": found.context_length,
        "context": length,
        "requests": found.requests(length),
    }


def tgi_report(
    model: str, gpu: Gpu, options: TgiOptions, found: TgiServing, context: int | None
) -> str:
    """Return what TGI does with a card."""
    longest = found.max_total_tokens
    length = context or longest
    prefill = found.max_batch_prefill_tokens
    verdict = f"STARTS: {between(*found.requests(length))} requests of {length:,} tokens at once"
    if not found.starts:
        verdict = (
            f"DOES NOT START: Not enough memory to handle {prefill} prefill tokens. You need to"
            " decrease `--max-batch-prefill-tokens`"
        )
    parts = [
        ("weights", gib(found.weights_bytes), "segments of them, and FlashInfer's buffers"),
        ("warm-up", gib(found.warm_up_bytes), f"a prefill of {prefill:,} tokens, with its cache"),
        ("outside PyTorch", spread(*found.outside_bytes), "the driver's context; kernels: assumed"),
        ("KV cache", spread(*found.cache_bytes), f"{found.token_bytes:,} bytes a token"),
        (
            "may take",
            gib(found.may_take_bytes),
            f"{WIGGLE_ROOM} of --cuda-memory-fraction {options.cuda_memory_fraction}",
        ),
        ("capacity", gib(gpu.capacity_bytes), "as the driver reports it"),
    ]
    return "\n".join(
        [
            verdict,
            "",
            f"{model} on {gpu.name}, by the rules of TGI {TGI}",
            "",
            *rows(parts),
            "",
            "requests at once   held by the cache",
            *_contexts(found, longest, context),
            "",
            "TGI's log will say about:",
            f"  Default `max_batch_prefill_tokens` to {prefill}"
            if options.max_batch_prefill_tokens is None
            else "  Warming up model",
            f"  KV-cache blocks: {between(*found.tokens)}, size: 1",
            f"  Setting max batch total tokens to {between(*found.tokens)}",
        ]
    )


def tgi_values(found: TgiServing, context: int | None) -> dict[str, Any]:
    """Return the result for JSON: bytes, and pairs for ranges."""
    length = context or found.max_total_tokens
    return {
        **asdict(found),
        "engine": f"tgi {TGI}",
        "context": length,
        "requests": found.requests(length),
    }
