"""Messages of others than PyTorch's allocator: servers, other libraries, other backends.

Each is known by its words. What its numbers mean is told in the words of its own options.

    vLLM        v1/core/kv_cache_utils.py, v1/worker/utils.py: three errors on the way to its cache
    SGLang      model_executor/model_runner.py: "Not enough memory"
    llama.cpp   ggml-cuda.cu: "cudaMalloc failed"; llama: buffers that could not be allocated
    PyTorch     CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED, "MPS backend out of memory"
    JAX         RESOURCE_EXHAUSTED
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import wrap

from vrambudget.report.tabular import WIDTH
from vrambudget.units import format_bytes

_MOST = 400  # characters of a message that are shown


@dataclass(frozen=True, slots=True)
class ForeignExplanation:
    """What a message means, and what to do; `message` is the text that was found."""

    source: str
    message: str
    what_happened: str
    next_steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    source: str
    pattern: re.Pattern[str]
    tell: Callable[[re.Match[str]], tuple[str, tuple[str, ...]]]


def explain_foreign(text: str) -> ForeignExplanation | None:
    """Return what the first known message in a log means, None where there is none."""
    found = [(hit.start(), known, hit) for known in _KNOWN if (hit := known.pattern.search(text))]
    if not found:
        return None
    _, known, hit = min(found, key=lambda each: each[0])
    what, steps = known.tell(hit)
    return ForeignExplanation(known.source, _joined(hit[0])[:_MOST], what, steps)


def _joined(text: str) -> str:
    return " ".join(text.split())


def render_foreign(explanation: ForeignExplanation) -> str:
    """Return the explanation as text of at most 80 columns."""
    lines = wrap(f"{explanation.source}: {explanation.message}", WIDTH)
    lines += ["", "What happened", *wrap(explanation.what_happened, WIDTH), "", "Next steps"]
    for step in explanation.next_steps:
        lines += wrap(step, WIDTH, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(lines)


_LESS_CACHE = (
    "lower --max-model-len, --max-num-seqs or --max-num-batched-tokens",
    "raise --gpu-memory-utilization, if nothing else runs on the card",
    "spread the weights: --tensor-parallel-size; or take fewer bits: --quantization",
    "`vrambudget serve MODEL --gpu GPU` counts weights, activations and cache",
)


def _no_blocks(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    del hit
    return (
        (
            "Weights and the profiled step alone take what the server may take, which is"
            " --gpu-memory-utilization times the card. Nothing is left for keys and values."
        ),
        _LESS_CACHE,
    )


def _one_request(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    length, needed, there = hit["length"], hit["needed"], hit["there"]
    what = (
        f"The cache has to hold one request of the greatest length, {length} tokens, which takes"
        f" {needed} GiB; {there} GiB are left after weights and the profiled step."
    )
    longest = re.search(r"estimated maximum model length is (\d+)", _joined(hit[0]))
    first = (f"--max-model-len {longest[1]} is the longest that fits",) if longest else ()
    return what, (*first, "halve the cache: --kv-cache-dtype fp8", *_LESS_CACHE[1:])


def _not_free(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    free, total, wanted = (float(hit[key]) for key in ("free", "total", "wanted"))
    return (
        (
            f"Before anything is loaded {total - free:.2f} of {total:.2f} GiB are in use, by other"
            f" processes or an earlier server that did not end; {wanted:.2f} GiB are asked for."
        ),
        (
            "see who holds it: nvidia-smi, then end what is not needed",
            f"--gpu-memory-utilization {int(free / total * 100) / 100:.2f} asks for what is free",
        ),
    )


def _sglang(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    del hit
    return (
        (
            "After loading, the part of the card that --mem-fraction-static gives to weights and"
            " cache leaves no room for keys and values."
        ),
        (
            "raise --mem-fraction-static a little (0.01 at a time): activations get the rest",
            "lower --context-length or --chunked-prefill-size, or raise --tp",
        ),
    )


def _tgi(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    return (
        (
            f"TGI warms up with a prefill of {hit['tokens']} tokens, and the card has no room for"
            " it beside the weights. What the warm-up leaves becomes the cache."
        ),
        (
            "lower --max-batch-prefill-tokens: longer prompts come in pieces",
            "more cards: --num-shard; or fewer bits: --quantize",
            "`vrambudget serve MODEL --gpu GPU --engine tgi` counts weights, warm-up and cache",
        ),
    )


def _llama_buffer(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    asked = f"{hit['asked']} MiB" if hit["asked"] else "a buffer"
    return (
        (
            f"llama.cpp asked the driver for {asked} in one piece, and the card has less. Weights"
            " of the layers on the card, keys and values for the whole context, and a compute"
            " buffer are each allocated at once when the model is loaded."
        ),
        (
            "put fewer layers on the card: -ngl",
            "shorten the context: -c; keys and values take the same for every token of it",
            "keys and values in 8 bit: -ctk q8_0 -ctv q8_0 (with -fa)",
            "a smaller compute buffer: -ub",
        ),
    )


def _cublas(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    library = "cuDNN" if hit[0].upper().startswith("CUDNN") else "cuBLAS"
    return (
        (
            f"The card is full: {library} allocates its handle and workspace from the driver,"
            " outside PyTorch's allocator, and got nothing. It happens at the first product or"
            " convolution, where PyTorch's cache has taken the rest."
        ),
        (
            "treat it as out of memory: a smaller batch or shorter sequences",
            "`vrambudget MODEL --gpu GPU` counts the workspace; leave 0.5 GiB free besides",
        ),
    )


def _jax(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    asked = format_bytes(int(hit["asked"])) if hit["asked"] else "a buffer"
    return (
        (
            f"XLA asked for {asked}. JAX takes 75 % of a GPU when it starts, and another process on"
            " the card, or a second framework in this one, has less than it sees."
        ),
        (
            "if something else runs on the card: XLA_PYTHON_CLIENT_PREALLOCATE=false",
            "or give it more: XLA_PYTHON_CLIENT_MEM_FRACTION=.90",
            "a smaller batch, or jax.checkpoint; donate what is not needed (donate_argnums)",
        ),
    )


def _mps(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    allocated, allowed, asked = (_joined(hit[key]) for key in ("allocated", "allowed", "asked"))
    return (
        (
            f"PyTorch on this Mac holds {allocated}, and may take {allowed} of the memory that the"
            f" processor shares; {asked} more were asked for."
        ),
        (
            "a smaller batch or shorter sequences; end programs that hold memory",
            "torch.mps.empty_cache() between phases",
            "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 lifts the bound, and may stall the system",
        ),
    )


_GAP = r"\s{1,40}"
_SIZE = r"[\d.]{1,20}\s{0,40}[KMGT]?i?B"


def _pattern(words: str) -> re.Pattern[str]:
    """Return a pattern in which a space is any white space: messages are wrapped."""
    return re.compile(words.replace(" ", _GAP), re.IGNORECASE)


_KNOWN = (
    _Known("vLLM", _pattern(r"No available memory for the cache blocks"), _no_blocks),
    _Known(
        "vLLM",
        _pattern(
            r"To serve at least one request with the models?(?:'s)? max seq len"
            r" \((?P<length>[\d,]{1,15})\), \(?(?P<needed>[\d.]{1,15}) GiB KV cache is needed"
            r"[^.]{0,80}available KV cache memory \((?P<there>[\d.]{1,15}) GiB\)"
            r"(?:[^\d]{0,120}estimated maximum model length is \d{1,12})?"
        ),
        _one_request,
    ),
    _Known(
        "vLLM",
        _pattern(
            r"Free memory on device(?: \S{1,20})? \((?P<free>[\d.]{1,15})/(?P<total>[\d.]{1,15})"
            r" GiB\) on startup is less than desired GPU memory utilization"
            r" \([\d.]{1,8}, (?P<wanted>[\d.]{1,15}) GiB\)"
        ),
        _not_free,
    ),
    _Known(
        "SGLang",
        _pattern(
            r"Not enough memory\. Please try (?:to increase|increasing) --mem-fraction-static"
        ),
        _sglang,
    ),
    _Known(
        "TGI",
        _pattern(
            r"Not enough memory to handle (?:\d{1,9} total tokens with )?"
            r"(?P<tokens>\d{1,9}) prefill tokens\."
        ),
        _tgi,
    ),
    _Known(
        "llama.cpp",
        _pattern(
            r"allocating (?P<asked>[\d.]{1,20}) MiB on device \d{1,3}: cudaMalloc failed"
            r"|unable to allocate CUDA\d{1,3} buffer|failed to allocate compute buffers?"
            r"|failed to allocate (?:CUDA\d{0,3} )?buffer for kv cache"
        ),
        _llama_buffer,
    ),
    _Known("PyTorch", _pattern(r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"), _cublas),
    _Known(
        "JAX",
        _pattern(
            r"RESOURCE_EXHAUSTED: Out of memory(?: while trying to allocate| allocating)?"
            r"(?: (?P<asked>\d{1,20}) bytes)?"
        ),
        _jax,
    ),
    _Known(
        "PyTorch",
        _pattern(
            rf"MPS backend out of memory \(MPS allocated: (?P<allocated>{_SIZE}),"
            rf" other allocations: {_SIZE}, max allowed: (?P<allowed>{_SIZE})\)\."
            rf" Tried to allocate (?P<asked>{_SIZE})"
        ),
        _mps,
    ),
)
