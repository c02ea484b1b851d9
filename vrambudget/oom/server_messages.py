"""Messages of servers that ran out of memory, in the words of their own options.

vLLM        v1/core/kv_cache_utils.py, v1/worker/utils.py: three errors on the way to its cache;
            v1/worker/gpu_model_runner.py: "warming up sampler";
            before its V1 engine worker/worker.py: "larger than the maximum number of tokens"
SGLang      model_executor/model_runner.py: "Not enough memory"
TGI         server.py: "Not enough memory to handle ... prefill tokens"
llama.cpp   ggml-cuda.cu: "cudaMalloc failed", "CUDA error"; ggml-alloc.c and llama: buffers that
            could not be allocated
Ollama      llm/server.go: "llama runner process has terminated", "more system memory"
"""

import re

from vrambudget.oom.known import SIZE, KnownMessage, joined, pattern
from vrambudget.units import format_bytes

_LESS_CACHE = (
    "lower --max-model-len, --max-num-seqs or --max-num-batched-tokens",
    "raise --gpu-memory-utilization, if nothing else runs on the GPU",
    "spread the weights: --tensor-parallel-size; or take fewer bits: --quantization",
    "`vrambudget serve MODEL --gpu GPU` estimates weights, activations and cache",
)


_SMALLER = (
    "put fewer layers on the GPU: -ngl",
    "shorten the context: -c; keys and values take the same for every token of it",
    "keys and values in 8 bit: -ctk q8_0 -ctv q8_0 (with -fa)",
    "a smaller compute buffer: -ub",
)


def _no_blocks(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    del hit
    return (
        (
            "Weights and the profiled step alone take what the server may take, which is"
            " --gpu-memory-utilization times the GPU. Nothing is left for keys and values."
        ),
        _LESS_CACHE,
    )


def _one_request(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    length, needed, there = hit["length"], hit["needed"], hit["there"]
    what = (
        f"The cache has to hold one request of the greatest length, {length} tokens, which takes"
        f" {needed} GiB; {there} GiB are left after weights and the profiled step."
    )
    longest = re.search(r"estimated maximum model length is (\d+)", joined(hit[0]))
    first = (f"--max-model-len {longest[1]} is the longest that fits",) if longest else ()
    return what, (*first, "halve the cache: --kv-cache-dtype fp8", *_LESS_CACHE[1:])


def _sampler(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    return (
        (
            f"After its cache was allocated vLLM samples for {hit['requests']} dummy requests, its"
            " max_num_seqs: float32 scores of the whole vocabulary for each, several times over."
            " The GPU has no memory left for them beside weights, cache and graphs."
        ),
        (
            f"lower --max-num-seqs: {hit['requests']} requests at once are profiled",
            "lower --gpu-memory-utilization, which leaves more outside the cache",
            "`vrambudget serve MODEL --gpu GPU` estimates weights, activations and cache",
        ),
    )


def _fewer_tokens(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    length, tokens = hit["length"], hit["tokens"]
    return (
        (
            f"The cache has to hold one request of the greatest length, {length} tokens; there is"
            f" room for {tokens} after weights and the profiled step."
        ),
        (
            f"--max-model-len {tokens} is the longest that fits",
            "halve the cache: --kv-cache-dtype fp8",
            *_LESS_CACHE[1:],
        ),
    )


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
            "After loading, the part of the GPU that --mem-fraction-static gives to weights and"
            " cache leaves no memory for keys and values."
        ),
        (
            "raise --mem-fraction-static a little (0.01 at a time): activations get the rest",
            "lower --context-length or --chunked-prefill-size, or raise --tp",
        ),
    )


def _tgi(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    return (
        (
            f"TGI warms up with a prefill of {hit['tokens']} tokens, and the GPU has no room for"
            " it beside the weights. What the warm-up leaves becomes the cache."
        ),
        (
            "lower --max-batch-prefill-tokens: longer prompts come in pieces",
            "more GPUs: --num-shard; or fewer bits: --quantize",
            "`vrambudget serve MODEL --gpu GPU` says what vLLM or SGLang holds there",
        ),
    )


def _llama_buffer(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    asked = f"{hit['asked']} MiB" if hit["asked"] else "a buffer"
    if hit["size"]:
        asked = format_bytes(int(hit["size"]))
    return (
        (
            f"llama.cpp asked the driver for {asked} in one piece, and the GPU has less. Weights"
            " of the layers on the GPU, keys and values for the whole context, and a compute"
            " buffer are each allocated at once when the model is loaded."
        ),
        _SMALLER,
    )


def _ggml(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    del hit
    what = (
        "llama.cpp's CUDA backend asked the driver for memory while it ran, and the GPU was full:"
        " weights, keys and values and the compute buffer leave too little for it."
    )
    return what, _SMALLER


def _ollama(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    needed, there = hit["needed"], hit["there"]
    what = "Ollama's runner, which is llama.cpp, asked the driver for more than the GPU has."
    if needed:
        what = (
            f"The model needs {joined(needed)} of main memory for the layers that do not fit the"
            f" GPU, and {joined(there)} are available."
        )
    return (
        what,
        (
            "fewer layers on the GPU: PARAMETER num_gpu; a shorter context: PARAMETER num_ctx",
            "fewer requests at once: OLLAMA_NUM_PARALLEL=1; 8-bit cache: OLLAMA_KV_CACHE_TYPE=q8_0",
            "a smaller file: `vrambudget run MODEL --gpu GPU` lists which quantisations run there",
        ),
    )


SERVERS = (
    KnownMessage(
        "vLLM",
        pattern(r"occurred when warming up sampler with (?P<requests>\d{1,9}) dummy requests"),
        _sampler,
    ),
    KnownMessage(
        "Ollama",
        pattern(
            r"llama runner process has terminated:[^\n]{0,200}out of memory"
            rf"|model requires more system memory \((?P<needed>{SIZE})\) than is available"
            rf" \((?P<there>{SIZE})\)"
        ),
        _ollama,
    ),
    KnownMessage(
        "llama.cpp",
        pattern(
            r"CUDA error(?: 2)? at \S{0,200}ggml-cuda\S{0,80}:\d{1,7}"
            r"|CUDA error: out of memory(?=[^\x00]{0,400}ggml)"
        ),
        _ggml,
    ),
    KnownMessage("vLLM", pattern(r"No available memory for the cache blocks"), _no_blocks),
    KnownMessage(
        "vLLM",
        pattern(
            r"To serve at least one request with the models?(?:'s)? max seq len"
            r" \((?P<length>[\d,]{1,15})\), \(?(?P<needed>[\d.]{1,15}) GiB KV cache is needed"
            r"[^.]{0,80}available KV cache memory \((?P<there>[\d.]{1,15}) GiB\)"
            r"(?:[^\d]{0,120}estimated maximum model length is \d{1,12})?"
        ),
        _one_request,
    ),
    KnownMessage(
        "vLLM",
        pattern(
            r"max seq len \((?P<length>\d{1,12})\) is larger than the maximum number of tokens that"
            r" can be stored in KV cache \((?P<tokens>\d{1,12})\)"
        ),
        _fewer_tokens,
    ),
    KnownMessage(
        "vLLM",
        pattern(
            r"Free memory on device(?: \S{1,20})? \((?P<free>[\d.]{1,15})/(?P<total>[\d.]{1,15})"
            r" GiB\) on startup is less than desired GPU memory utilization"
            r" \([\d.]{1,8}, (?P<wanted>[\d.]{1,15}) GiB\)"
        ),
        _not_free,
    ),
    KnownMessage(
        "SGLang",
        pattern(r"Not enough memory\. Please try (?:to increase|increasing) --mem-fraction-static"),
        _sglang,
    ),
    KnownMessage(
        "TGI",
        pattern(
            r"Not enough memory to handle (?:\d{1,9} total tokens with )?"
            r"(?P<tokens>\d{1,9}) prefill tokens\."
        ),
        _tgi,
    ),
    KnownMessage(
        "llama.cpp",
        pattern(
            r"allocating (?P<asked>[\d.]{1,20}) MiB on device \d{1,3}: cudaMalloc failed"
            r"|failed to allocate (?:CUDA|ROCm)\d{1,3} buffer of size (?P<size>\d{1,20})"
            r"|unable to allocate CUDA\d{1,3} buffer|failed to allocate compute buffers?"
            r"|failed to allocate (?:CUDA\d{0,3} )?buffer for kv cache"
        ),
        _llama_buffer,
    ),
)
