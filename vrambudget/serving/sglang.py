"""What SGLang does with a GPU: weights and a pool of tokens in a part of what was free.

    before      free before weights are loaded: the GPU without the driver's context
    weights     what the free memory falls by as they are loaded: whole segments of PyTorch's
                allocator, and a little outside it, which is measured
    pool        after loading free - before * (1 - mem_fraction_static), in tokens of every layer:
                those with a window keep all tokens, too (pools of their own are gpt-oss's, Llama
                4's, MiMo's and Step's)
    fraction    unless it is given, what is left of nvidia-smi's total for activations of a prefill
                chunk, CUDA graphs and metadata, by a rule of thumb

Source: sglang 0.5.9: srt/model_executor/model_runner_kv_cache_mixin.py (profile_max_num_token,
get_cell_size_per_token, init_memory_pool), srt/server_args.py (_handle_gpu_memory_settings),
srt/utils/common.py (get_available_gpu_memory), srt/layers/rotary_embedding.py,
srt/configs/model_config.py (is_hybrid_swa_model).
Not modelled: quantised weights, latent attention, the architectures with two pools, speculative
decoding, attention by data-parallel ranks.
"""

from dataclasses import dataclass

from vrambudget.config.gpus import Gpu
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.serving.options import SglangOptions
from vrambudget.serving.weights import WHOLE_EXPERTS, kv_heads, layers_of, reserved_bytes

VERSION = "0.5.9"
_MIB = 2**20
# nvidia-smi's memory.total in MiB, which is more than the driver reports to programs. Printed in
# github.com/modal-labs/modal-client/pull/2797; RTX 4090: github.com/vllm-project/vllm/issues/7553;
# RTX 3090: github.com/noonghunna/club-3090/issues/390.
_TOTALS = {
    "h100-80gb": 81559,
    "a100-80gb": 81920,
    "a100-40gb": 40960,
    "l40s": 46068,
    "rtx-4090": 24564,
    "rtx-3090": 24576,
    "l4": 23034,
    "t4": 15360,
}
# Below so many GiB: the prefill chunk, requests of the largest graph, and with four GPUs or more.
_BY_SIZE = (
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (90, 8192, 256, 512),
    (160, 8192, 256, 512),
)
_LARGEST = 16384, 512
_MANY_GPUS = 4
OUTSIDE = 0, 32 * _MIB  # measured on H100s: what loading takes besides tensors
# Two pools, or no rule was ever held against a start.
_HELD = frozenset(
    {"gemma", "gemma2", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe"}
)
_LEAST_REQUESTS, _MOST_REQUESTS = 2048, 4096


@dataclass(frozen=True, slots=True)
class SglangServing:
    """What one GPU of a server holds; pairs are least and most."""

    before_bytes: tuple[int, int]
    weights_bytes: int
    fraction: float
    is_default: bool  # the fraction
    knows_total: bool  # what nvidia-smi shows of this GPU
    pool_bytes: tuple[int, int]
    cell_bytes: int  # of a token
    tokens: tuple[int, int]
    context_length: int
    chunk: int
    running: tuple[int, int]  # requests at once, at most

    @property
    def starts(self) -> bool:
        """Whether there is room for any token."""
        return self.tokens[0] > 0

    def requests(self, context: int) -> tuple[int, int]:
        """Return how many requests of so many tokens are held at once."""
        low, high = (
            min(n // context, most) for n, most in zip(self.tokens, self.running, strict=True)
        )
        return low, high


def serve(config: DecoderConfig, gpu: Gpu, options: SglangOptions) -> SglangServing:
    """Return what a server holds. Raises VramBudgetError."""
    _check(config, options)
    stages = layers_of(config, options.pipeline_parallel_size)
    ranks = (_of_rank(config, gpu, options, layers) for layers in stages)
    return min(ranks, key=lambda serving: serving.tokens[0])


def _check(config: DecoderConfig, options: SglangOptions) -> None:
    if config.model_type not in _HELD:
        raise NotModelledError(
            f"{config.model_type} in SGLang is not modelled", hint="--engine vllm has rules for it"
        )
    if config.num_attention_heads % options.tensor_parallel_size:
        raise VramBudgetError(
            f"tensor_parallel_size is {options.tensor_parallel_size}, which does not divide"
            f" {config.num_attention_heads} attention heads"
        )
    if options.ep_size > 1:
        raise NotModelledError(f"--ep-size is not modelled: {WHOLE_EXPERTS}")


def _of_rank(
    config: DecoderConfig, gpu: Gpu, options: SglangOptions, layers: range
) -> SglangServing:
    tp = options.tensor_parallel_size
    weights = reserved_bytes(config, layers, itemsize=2, tp=tp)
    low, high = gpu.context_range
    before = gpu.capacity_bytes - high, gpu.capacity_bytes - low
    chunk, graph = _by_size(gpu, tp)
    chunk = options.chunked_prefill_size or chunk
    fraction = options.mem_fraction_static or _fraction(gpu, options, chunk, graph)
    pool = (
        int(before[0] * fraction) - weights - OUTSIDE[1],
        int(before[1] * fraction) - weights - OUTSIDE[0],
    )
    itemsize = 2 if options.kv_cache_dtype == "auto" else 1
    cell = kv_heads(config, tp) * 2 * config.head_width * len(layers) * itemsize
    least, most = (_tokens(n // cell, options) for n in pool)
    longest = options.context_length or config.max_position_embeddings
    return SglangServing(
        before_bytes=before,
        weights_bytes=weights,
        fraction=fraction,
        is_default=options.mem_fraction_static is None,
        knows_total=gpu.key in _TOTALS,
        pool_bytes=pool,
        cell_bytes=cell,
        tokens=(least, most),
        context_length=longest,
        chunk=chunk,
        running=(_running(least, longest, options), _running(most, longest, options)),
    )


def _tokens(tokens: int, options: SglangOptions) -> int:
    """Return the pool's tokens in whole pages, none below 0."""
    tokens = max(0, min(tokens, options.max_total_tokens or tokens))
    return tokens // options.page_size * options.page_size


def _running(tokens: int, longest: int, options: SglangOptions) -> int:
    if options.max_running_requests is not None:
        return options.max_running_requests
    return min(max(int(tokens / longest * 512), _LEAST_REQUESTS), _MOST_REQUESTS)


def total_mib(gpu: Gpu) -> int:
    """Return nvidia-smi's total of a GPU; where nobody published it, the driver's."""
    return _TOTALS.get(gpu.key, gpu.capacity_bytes // _MIB)


def _by_size(gpu: Gpu, tp: int) -> tuple[int, int]:
    """Return the default prefill chunk, and the requests of the largest CUDA graph."""
    total = total_mib(gpu)
    for gib, chunk, few, many in _BY_SIZE:
        if total < gib * 1024:
            return chunk, few if tp < _MANY_GPUS else many
    return _LARGEST


def _fraction(gpu: Gpu, options: SglangOptions, chunk: int, graph: int) -> float:
    total = total_mib(gpu)
    kept = 512 + max(chunk, 2048) * 1.5 + (options.cuda_graph_max_bs or graph) * 2
    kept += options.tensor_parallel_size * options.pipeline_parallel_size / 8 * 1024
    if total > 60 * 1024:
        kept = max(kept, 10 * 1024)
    return round((total - kept) / total, 3)
