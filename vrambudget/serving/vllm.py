"""What vLLM does with a GPU: weights, a profiled step, and the rest for its cache.

    may take      ceil(utilization * capacity)
    weights       as loaded, merged (`serving.weights`)
    activations   of a step, as it is profiled (`serving.profiled`)
    outside       what the GPU's free memory falls by besides PyTorch's tensors in between:
                  kernels, libraries, NCCL's buffers. No rule says how much: it is measured, a range
    counts        of the second model runner's sampler (`serving.vllm_versions`)
    cache         the rest, in blocks (`serving.blocks`), from 0.20 on less what vLLM expects of
                  CUDA graphs (`serving.outside`)
    graphs        CUDA graphs are captured after all this and come out of 1 - utilization: measured

Of several GPUs the one with the fewest blocks decides for all.

Source: vllm/v1/worker/gpu_worker.py (determine_available_memory), gpu_model_runner.py (profile_run,
_dummy_sampler_run), engine/arg_utils.py (get_batch_defaults).
vLLM 0.19 to 0.33, which differ as `serving.vllm_versions` says.
Not modelled: quantised experts but gpt-oss's, speculative decoding, LoRA adapters, pictures but
Gemma 3's, models of which each layer has a cache of another size.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from vrambudget.config.gpus import Gpu
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.latent import LatentConfig
from vrambudget.models.parts.moe import MoeConfig
from vrambudget.ops.workspaces import MIB
from vrambudget.serving import vllm_versions
from vrambudget.serving.blocks import Groups, groups_of, state_pages
from vrambudget.serving.latent import prefill_context, workspace_bytes
from vrambudget.serving.mxfp4 import Mxfp4
from vrambudget.serving.options import ServeOptions
from vrambudget.serving.outside import KERNELS_BYTES, expected_graphs, range_of
from vrambudget.serving.profiled import activations_bytes
from vrambudget.serving.quantised import Quantisation
from vrambudget.serving.tabled import TabledDecoder
from vrambudget.serving.weights import (
    WHOLE_EXPERTS,
    layers_of,
    offloaded_bytes,
    weight_bytes,
)

_GIB = 2**30
_LARGE_GPU = 70 * _GIB
_NOT_MODELLED = {
    "enable_expert_parallel": WHOLE_EXPERTS,
    "enable_lora": "adapters have weights of their own",
    "speculative_config": "a draft has its own cache",
    "data_parallel_size": "engines that share requests speak to each other",
}
GRAPHS = (471 * MIB, 2683 * MIB)  # published: Qwen3 0.6B on an A100, Qwen2.5 72B on four L40S


@dataclass(frozen=True, slots=True)
class Serving:
    """What one GPU of a server holds; `least` and `most`: over the range of what is measured."""

    weights_bytes: int
    activations_bytes: int
    outside_bytes: tuple[int, int]
    may_take_bytes: int
    cache_bytes: tuple[int, int]  # least, most
    blocks: tuple[int, int]
    tokens: tuple[int, int]
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    in_flight_tokens: int  # of steps that are not settled yet
    concurrency: tuple[float, float]  # at max_model_len
    longest_request: int  # tokens, by the least
    block_size: int
    groups: Groups
    graphs_bytes: tuple[int, int]
    token_counts_bytes: int  # tokens of each request, for penalties
    expected_graphs_bytes: tuple[int, int]  # what comes out of the cache for them
    first_start_bytes: int  # more activations while vLLM has nothing compiled yet
    first_start_tokens: tuple[int, int]
    error: str | None = None  # vLLM's own, where it does not start

    @property
    def lacks_states(self) -> bool:
        """Whether requests that CUDA graphs are captured for have no state each.

        vllm/config/compilation.py (resolve_cudagraph_mode_and_sizes).
        """
        has_graphs = self.graphs_bytes[1] > 0
        return bool(self.groups.state_blocks and has_graphs and self.max_num_seqs > self.blocks[0])

    def requests(self, context: int) -> tuple[int, int]:
        """Return how many requests of so many tokens are held at once, least and most."""
        each = self.groups.blocks_of(context, self.in_flight_tokens, self.block_size)
        least, most = (min((n - 1) // each, self.max_num_seqs) for n in self.blocks)
        return max(0, least), max(0, most)


def serve(
    config: DecoderConfig,
    gpu: Gpu,
    options: ServeOptions,
    quantised: Quantisation | None = None,
) -> Serving:
    """Return what a server holds. Raises VramBudgetError for options that vLLM refuses."""
    _check(config, options)
    if quantised is not None and options.itemsize > 2:  # noqa: PLR2004
        raise NotModelledError("quantised weights with dtype float32 are not modelled")
    if isinstance(quantised, Mxfp4):
        quantised = replace(quantised, minor=options.minor)
    stages = layers_of(config, options.pipeline_parallel_size)
    ranks = (_of_rank(config, gpu, options, layers, quantised) for layers in stages)
    found = min(ranks, key=lambda serving: serving.blocks[0])
    return replace(found, error=_error(found, gpu, options.utilization))


def _error(found: Serving, gpu: Gpu, utilization: float) -> str | None:
    """Return how a start ends that comes to no server: what is asked for, loaded, or left."""
    free = gpu.capacity_bytes - gpu.context_range[0]
    total, loaded = f"{gpu.capacity_bytes / _GIB:.2f}", found.weights_bytes / _GIB
    if free < found.may_take_bytes:
        return (
            f"Free memory on device cuda:0 ({free / _GIB:.2f}/{total} GiB) on startup is less than"
            f" desired GPU memory utilization ({utilization},"
            f" {found.may_take_bytes / _GIB:.2f} GiB)."
        )
    if free < found.weights_bytes:
        return f"CUDA out of memory while weights are loaded: they take {loaded:.2f} GiB"
    if free < found.weights_bytes + found.activations_bytes:
        return f"CUDA out of memory in the profiled step, beside {loaded:.2f} GiB of weights"
    return _error_of_cache(found)


def _error_of_cache(found: Serving) -> str | None:
    if found.cache_bytes[0] <= 0:
        return (
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
            " when initializing the engine."
        )
    if found.lacks_states:
        return (
            f"max_num_seqs ({found.max_num_seqs}) exceeds available Mamba cache blocks"
            f" ({found.blocks[0]}): --max-num-seqs {found.blocks[0]}"
        )
    if found.longest_request < found.max_model_len:
        return (
            f"To serve at least one request with max seq len {found.max_model_len:,}, more KV cache"
            f" memory is needed; the estimated maximum model length is {found.longest_request:,}:"
            f" --max-model-len {found.longest_request}"
        )
    return None


def _check(config: DecoderConfig, options: ServeOptions) -> None:
    tp = options.tensor_parallel_size
    if "linear_attention" in config.layer_kinds and options.minor < vllm_versions.NEWEST:
        raise NotModelledError(
            f"states of recurrent layers are modelled of vLLM 0.{vllm_versions.NEWEST} alone"
        )
    if config.num_attention_heads % tp:
        raise VramBudgetError(
            f"tensor_parallel_size is {tp}, which does not divide"
            f" {config.num_attention_heads} attention heads"
        )
    for name, why in _NOT_MODELLED.items():
        asked = getattr(options, name)
        if asked is True or asked not in (None, 0, 1):
            raise NotModelledError(f"--{name.replace('_', '-')} is not modelled: {why}")
    if options.pipeline_parallel_size > config.num_hidden_layers:
        raise VramBudgetError(
            f"pipeline_parallel_size is {options.pipeline_parallel_size}; the model has"
            f" {config.num_hidden_layers} layers"
        )
    longest = options.max_model_len
    if longest is not None and longest > config.max_position_embeddings:
        raise VramBudgetError(
            f"max_model_len is {longest}; the model has {config.max_position_embeddings} positions",
            hint="vLLM refuses more, unless VLLM_ALLOW_LONG_MAX_MODEL_LEN is set",
        )


def _of_rank(
    config: DecoderConfig,
    gpu: Gpu,
    options: ServeOptions,
    layers: range,
    quantised: Quantisation | None,
) -> Serving:
    itemsize, tp = options.itemsize, options.tensor_parallel_size
    is_large = gpu.capacity_bytes >= _LARGE_GPU and "a100" not in gpu.name.lower()
    step = options.max_num_batched_tokens or (8192 if is_large else 2048)
    seqs = min(options.max_num_seqs or (1024 if is_large else 256), step)
    longest = options.max_model_len or config.max_position_embeddings
    how = None if quantised is None else (quantised, gpu)
    is_dense = not isinstance(config, MoeConfig | LatentConfig)
    rules = vllm_versions.VllmRules(
        options.minor, config.model_type, is_dense, quantised is not None
    )
    alone = options.minor >= vllm_versions.ALONE_IN_SEGMENTS
    weights = weight_bytes(
        config,
        layers,
        itemsize=itemsize,
        tp=tp,
        quantised=how,
        alone=alone,
        rotary_tables=rules.has_rotary_tables,
    )
    weights += workspace_bytes(gpu, options.minor) if isinstance(config, LatentConfig) else 0
    if options.cpu_offload_gb:
        most = int(options.cpu_offload_gb * _GIB)
        weights -= offloaded_bytes(config, layers, most, itemsize=itemsize, tp=tp, quantised=how)
    samples = layers.stop == config.num_hidden_layers
    sizes = step, seqs, prefill_context(longest, seqs, options.block_size)
    sampling = rules if samples else None
    activations = activations_bytes(
        config, gpu, options, sizes, sampling=sampling, quantised=quantised
    )
    token_counts = rules.token_counts_bytes(seqs, config.vocab_size) * samples
    may_take = ceil(options.utilization * gpu.capacity_bytes)
    outside, _ = range_of(gpu, tp, options.pipeline_parallel_size)
    outside = _pair(lambda size: rules.outside(size, KERNELS_BYTES), outside)
    expected = 0, 0
    if rules.takes_graphs and not options.enforce_eager:
        expected = expected_graphs(gpu, len(layers), seqs, rules)
    rest = may_take - weights - activations - token_counts
    cache = rest - outside[1] - expected[1], rest - outside[0] - expected[0]
    first = vllm_versions.tables_bytes(config.vocab_size // tp, config.hidden_size, step, itemsize)
    is_compiled = not options.enforce_eager and not layers.start
    first = max(0, first * is_compiled - activations)
    if options.kv_cache_memory_bytes is not None:
        cache, first = (options.kv_cache_memory_bytes,) * 2, 0
        if (left := gpu.capacity_bytes - weights - outside[0]) < cache[0]:
            raise VramBudgetError(
                f"kv_cache_memory_bytes is {cache[0]}; beside the weights there are {max(0, left)}"
                f" bytes of {gpu.name}"
            )
    block: int = options.block_size
    pages = state_pages(gpu, block)
    groups = groups_of(config, layers, tp, pages.kept)
    kv_itemsize = itemsize if options.kv_cache_dtype == "auto" else 1
    if groups.state_blocks and isinstance(config, TabledDecoder):
        block = pages.block_of(groups.width * kv_itemsize, config.state_bytes(itemsize, tp))
    page = block * groups.width * kv_itemsize
    in_flight = step * (
        1 if options.minor < vllm_versions.MULTI_STEP else options.pipeline_parallel_size + 1
    )
    each = groups.blocks_of(longest, in_flight, block)

    def blocks_of(size: int) -> int:
        return max(0, size // page // groups.layers)

    def tokens_of(size: int) -> int:
        by_requests = options.minor > vllm_versions.OLDEST
        held = blocks_of(size)
        return held * longest // each if by_requests else held // len(groups.windows) * block

    blocks = _pair(blocks_of, cache)
    return Serving(
        weights_bytes=weights,
        activations_bytes=activations,
        outside_bytes=outside,
        may_take_bytes=may_take,
        cache_bytes=cache,
        blocks=blocks,
        tokens=_pair(tokens_of, cache),
        max_model_len=longest,
        max_num_seqs=seqs,
        max_num_batched_tokens=step,
        in_flight_tokens=in_flight,
        concurrency=(blocks[0] / each, blocks[1] / each),
        longest_request=_longest(groups, blocks[0], longest, in_flight, block),
        block_size=block,
        groups=groups,
        graphs_bytes=(0, 0) if options.enforce_eager else GRAPHS,
        token_counts_bytes=token_counts,
        expected_graphs_bytes=expected,
        first_start_bytes=first,
        first_start_tokens=_pair(lambda size: tokens_of(size - first), cache),
    )


def _pair(function: Callable[[int], int], values: tuple[int, int]) -> tuple[int, int]:
    return function(values[0]), function(values[1])


def _longest(groups: Groups, blocks: int, longest: int, step: int, block: int) -> int:
    """Return the most tokens of a request that the blocks hold (estimate_max_model_len)."""
    asked = range(1, longest + 1)
    return bisect_left(asked, 1, key=lambda n: groups.blocks_of(n, step, block) > blocks)
