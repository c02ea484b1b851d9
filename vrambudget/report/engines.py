"""The report of SGLang's servers: what takes the GPU, what the log says.

Where something measured or assumed is part of a number, the number is a range.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from vrambudget.config.gpus import Gpu
from vrambudget.report.serving import between, contexts, rows, starts
from vrambudget.serving.sglang import OUTSIDE, SglangServing
from vrambudget.serving.sglang import VERSION as SGLANG
from vrambudget.units import gib, spread


def sglang_report(model: str, gpu: Gpu, found: SglangServing, context: int | None) -> str:
    """Return what SGLang does with a GPU."""
    length = context or found.context_length
    verdict = starts(found, length, f"SGLang {SGLANG}")
    if not found.starts:
        verdict = (
            "DOES NOT START: Not enough memory. Please try to increase --mem-fraction-static."
            f" Current value: {found.fraction}"
        )
    default = "SGLang's default for the GPU" if found.is_default else "as given"
    parts = [
        ("free before", spread(*found.before_bytes), "the GPU without the driver's context"),
        ("weights", gib(found.weights_bytes), "segments that PyTorch reserves for them"),
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
            *contexts(found, found.context_length, context),
            "",
            "SGLang's log will say about:",
            f"  Load weight end. mem usage={found.weights_bytes / 2**30:.2f} GB.",
            f"  KV Cache is allocated. #tokens: {between(*found.tokens)}",
            f"  max_total_num_tokens={between(*found.tokens)}, chunked_prefill_size={found.chunk}",
        ]
    )


def _of_the_default(found: SglangServing) -> Iterator[str]:
    if found.is_default and not found.knows_total:
        yield "note: the default fraction comes from nvidia-smi's total, which is read as the"
        yield "  driver's: it may be a hundredth more; --mem-fraction-static says it"


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
