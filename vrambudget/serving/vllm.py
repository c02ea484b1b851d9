"""What vLLM does with a GPU: weights, a profiled step, and the rest for its cache.

    may take      ceil(utilization * capacity)
    weights       as loaded, merged (`serving.weights`)
    activations   the larger of a step's MLP and the warm-up of the sampler over max_num_seqs rows
    outside       what the GPU's free memory falls by besides PyTorch's tensors in between:
                  kernels, libraries, NCCL's buffers. No rule says how much: it is measured, a range
    counts        of the second model runner's sampler (`serving.vllm_versions`)
    cache         the rest, in blocks (`serving.blocks`), from 0.20 on less what vLLM expects of
                  CUDA graphs (`serving.outside`)
    graphs        CUDA graphs are captured after all this and come out of 1 - utilization: measured

Of several GPUs the one with the fewest blocks decides for all.

Source: vllm/v1/worker/gpu_worker.py (determine_available_memory), gpu_model_runner.py (profile_run,
_dummy_sampler_run), v1/sample/ops/topk_topp_sampler.py, engine/arg_utils.py (get_batch_defaults),
model_executor/layers/fused_moe/fused_moe.py (TritonExperts.workspace_shapes).
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
from vrambudget.models.families.gemma3_images import Gemma3Config
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.latent import LatentConfig
from vrambudget.models.parts.moe import MoeConfig
from vrambudget.ops.workspaces import MIB
from vrambudget.serving import vllm_versions
from vrambudget.serving.blocks import Groups, groups_of
from vrambudget.serving.latent import attention_elements, prefill_context, workspace_bytes
from vrambudget.serving.linear import Linear
from vrambudget.serving.mxfp4 import Mxfp4
from vrambudget.serving.options import ServeOptions
from vrambudget.serving.outside import KERNELS_BYTES, expected_graphs, range_of
from vrambudget.serving.parameters import layer_tensors
from vrambudget.serving.quantised import Packed, Quantisation
from vrambudget.serving.weights import (
    WHOLE_EXPERTS,
    kv_heads,
    layers_of,
    offloaded_bytes,
    weight_bytes,
)

_GIB = 2**30
_LARGE_GPU = 70 * _GIB
_HOPPER_WORKSPACE, _WORKSPACE = 32 * MIB, 8 * MIB + 128 * 1024
_PICTURE_TOKENS = 256  # of Gemma 3 (mm_tokens_per_image)
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
    counted_bytes: int  # tokens of each request, for penalties
    expected_graphs_bytes: tuple[int, int]  # what comes out of the cache for them
    first_start_bytes: int  # more activations while vLLM has nothing compiled yet
    first_start_tokens: tuple[int, int]
    error: str | None = None  # vLLM's own, where it does not start

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
    if found.cache_bytes[0] <= 0:
        return (
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
            " when initializing the engine."
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
    weights = weight_bytes(config, layers, itemsize=itemsize, tp=tp, quantised=how, alone=alone)
    weights += workspace_bytes(gpu, options.minor) if isinstance(config, LatentConfig) else 0
    if options.cpu_offload_gb:
        most = int(options.cpu_offload_gb * _GIB)
        weights -= offloaded_bytes(config, layers, most, itemsize=itemsize, tp=tp, quantised=how)
    samples = layers.stop == config.num_hidden_layers
    sizes = step, seqs, prefill_context(longest, seqs, options.block_size)
    sampling = rules if samples else None
    activations = _activations(config, gpu, options, sizes, sampling=sampling, quantised=quantised)
    counted = rules.counted_bytes(seqs, config.vocab_size) * samples
    may_take = ceil(options.utilization * gpu.capacity_bytes)
    outside, _ = range_of(gpu, tp, options.pipeline_parallel_size)
    outside = _pair(lambda size: rules.outside(size, KERNELS_BYTES), outside)
    expected = 0, 0
    if rules.takes_graphs and not options.enforce_eager:
        expected = expected_graphs(gpu, len(layers), seqs, rules)
    rest = may_take - weights - activations - counted
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
    groups, block = groups_of(config, layers), options.block_size
    kv_itemsize = itemsize if options.kv_cache_dtype == "auto" else 1
    width = 2 * kv_heads(config, tp) * config.head_width  # of a token: keys and values
    width = config.latent_width if isinstance(config, LatentConfig) else width
    page = block * width * kv_itemsize
    in_flight = step * (
        1 if options.minor < vllm_versions.SEVERAL_STEPS else options.pipeline_parallel_size + 1
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
        counted_bytes=counted,
        expected_graphs_bytes=expected,
        first_start_bytes=first,
        first_start_tokens=_pair(lambda size: tokens_of(size - first), cache),
    )


def _pair(function: Callable[[int], int], values: tuple[int, int]) -> tuple[int, int]:
    return function(values[0]), function(values[1])


def _activations(
    config: DecoderConfig,
    gpu: Gpu,
    options: ServeOptions,
    sizes: tuple[int, int, int],
    *,
    sampling: vllm_versions.VllmRules | None,
    quantised: Quantisation | None,
) -> int:
    """Return the peak of profile_run beyond the weights: the MLP's, or the sampler's after it.

    hidden states and residual [N, C]; gate and up [N, 2 I], their product [N, I]
    AWQ's own kernel: the largest weights of a layer in 16 bit, while it multiplies
    experts: two workspaces [N, k, max(I, C)] and [N, k, max(2 I, C)], which stay
    latent attention: keys and values of `context` tokens, as a prefill in pieces makes them anew
    logits [S, V] and their float32 copies; the first runner has random hidden states for them, and
    a buffer of its kernel for top-k and top-p. `sampling`: None on ranks that do not
    cuBLAS's workspace: from the first product on, which of quantised layers is the head's
    """
    step, seqs, context = sizes
    itemsize, tp = options.itemsize, options.tensor_parallel_size
    width, vocabulary = config.hidden_size, config.vocab_size
    inner = getattr(config, "moe_intermediate_size", config.intermediate_size) // tp
    hidden = step * width * itemsize
    workspace = _HOPPER_WORKSPACE if gpu.compute_capability == (9, 0) else _WORKSPACE
    mlp = 2 * hidden + 3 * step * inner * itemsize
    if isinstance(quantised, Packed) and not quantised.repacked:
        linears = [t.elements for t in layer_tensors(config, 0, tp) if isinstance(t, Linear)]
        mlp += max(linears) * itemsize
    if isinstance(config, MoeConfig | LatentConfig):
        columns = max(inner, width) + max(2 * inner, width)
        if isinstance(quantised, Mxfp4):
            columns = quantised.workspace_columns(inner, width, gpu)
        workspace += step * config.num_experts_per_tok * columns * itemsize
        mlp = 3 * hidden
    if isinstance(config, LatentConfig):
        mlp = max(mlp, 2 * hidden + attention_elements(config, step, context, tp) * itemsize)
    if quantised is None or isinstance(config, LatentConfig):
        mlp += workspace
    pictures = _pictures(config, step, itemsize)
    if sampling is None:
        return pictures + mlp
    rows = (2 - sampling.is_second) * seqs * width * itemsize
    sampler = (itemsize + sampling.copies * 4) * seqs * vocabulary
    sampler += gpu.multiprocessors * vocabulary * 4 * (not sampling.is_second)
    return pictures + max(mlp, hidden + rows + sampler + workspace)


def _pictures(config: DecoderConfig, step: int, itemsize: int) -> int:
    """Return what stays of the vision tower's profile: pixels, and embeddings of the step's tokens.

    As many pictures as make a step's tokens [n, 3, S, S], and what they become [n tokens, C].
    """
    if not isinstance(config, Gemma3Config):
        return 0
    pictures = max(1, step // _PICTURE_TOKENS)
    pixels: int = 3 * config.vision_config.image_size**2
    embedded: int = _PICTURE_TOKENS * config.hidden_size
    return pictures * (pixels + embedded) * itemsize


def _longest(groups: Groups, blocks: int, longest: int, step: int, block: int) -> int:
    """Return the most tokens of a request that the blocks hold (estimate_max_model_len)."""
    asked = range(1, longest + 1)
    return bisect_left(asked, 1, key=lambda n: groups.blocks_of(n, step, block) > blocks)
