"""What text-generation-inference does with a card: weights, a warm-up prefill, and the rest.

    weights      loaded one by one, projections joined on the card; unused segments are given back
    buffers      FlashInfer's: 128 MiB that its plans share, 8 MiB for each of three
    warm-up      max_batch_prefill_tokens tokens through the model, with their keys and values
    cache        cuda_memory_fraction * 0.9 of the card, less all that is taken after the warm-up,
                 PyTorch's cache among it, in tokens; and those of the warm-up
    CUDA graphs  come after it, out of the tenth that is left

    the prefill  MLP: 7 tensors [N, C] that the layer's and the model's variables hold, gate and up
                 [N, 2 I], the activation and the product [N, I]

Source: text-generation-inference 3.3.7: server/text_generation_server/models/flash_causal_lm.py
(warmup), models/custom_modeling/flash_llama_modeling.py, layers/tensor_parallel.py,
layers/attention/flashinfer.py, utils/import_utils.py (get_cuda_free_memory);
backends/v3/src/client/grpc_client.rs (warmup); launcher/src/main.rs (compute_optimal, vram_maximum,
resolve_attention).
Held against no log: nobody published one with the numbers of its warm-up.
Not modelled, and refused: several shards (NCCL's buffers), quantised weights, heads that FlashInfer
has no kernel for, GPUs before compute capability 8.0.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vrambudget.config.gpus import Gpu
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.ops.workspaces import MIB
from vrambudget.serving.options import TgiOptions
from vrambudget.serving.sglang import total_mib
from vrambudget.tape.allocator import CachingAllocator

VERSION = "3.3.7"
WIGGLE_ROOM = 0.9  # TGI_WIGGLE_ROOM
_LAUNCHERS_WIGGLE_ROOM = 0.95
_FAMILIES = frozenset({"llama", "mistral", "qwen2"})
_HEADS = frozenset({64, 128, 256})
_ITEMSIZE = 2
_BUFFERS = (128 * MIB, 8 * MIB, 8 * MIB, 8 * MIB)
_HOPPER_WORKSPACE, _WORKSPACE = 32 * MIB, 8 * MIB + 128 * 1024
KERNELS = 0, 276 * MIB  # what vLLM's kernels and libraries were measured to take on H100s, or less
_USUAL_PREFILL = 4096
_LEAST_OPTIMAL = 100
_AMPERE = (8, 0)
_TERA = 10**12
# By nvidia-smi's name in small letters; of others the launcher knows nothing.
_FLOPS = {
    "nvidia-t4": 65,
    "nvidia-l4": 121,
    "nvidia-l40": 181,
    "nvidia-l40s": 363,
    "nvidia-a10g": 125,
    "nvidia-a40": 149,
    "nvidia-h100-80gb-hbm3": 900,
    "nvidia-h100-nvl": 900,
    "nvidia-a100-sxm4-80gb": 312,
    "nvidia-a100-sxm4-40gb": 312,
    "nvidia-a100-80gb-pcie": 312,
    "nvidia-h200": 989,
}


@dataclass(frozen=True, slots=True)
class TgiServing:
    """What the card of a server holds; pairs are least and most."""

    weights_bytes: int  # segments after loading, and FlashInfer's buffers
    warm_up_bytes: int  # what PyTorch has reserved besides after the prefill
    outside_bytes: tuple[int, int]
    may_take_bytes: int
    cache_bytes: tuple[int, int]
    token_bytes: int
    tokens: tuple[int, int]
    max_batch_prefill_tokens: int
    max_total_tokens: int
    max_concurrent_requests: int
    starts: bool  # the warm-up fits onto the card

    def requests(self, context: int) -> tuple[int, int]:
        """Return how many requests of so many tokens are held at once."""
        low, high = (min(n // context, self.max_concurrent_requests) for n in self.tokens)
        return low, high


def serve(config: DecoderConfig, gpu: Gpu, options: TgiOptions) -> TgiServing:
    """Return what a server holds. Raises VramBudgetError."""
    _check(config, gpu, options)
    prefill = options.max_batch_prefill_tokens or default_prefill(config, gpu, options)
    itemsize = _ITEMSIZE if options.kv_cache_dtype is None else 1
    layers, heads = config.num_hidden_layers, config.kv_heads
    token = 2 * layers * heads * config.head_width * itemsize
    slots, requests = _warm_up_requests(prefill, options)
    weights, reserved = _reserved(
        config, gpu, prefill, requests, (layers, slots * token // layers // 2)
    )
    low, high = gpu.context_range
    outside = low + KERNELS[0], high + KERNELS[1]
    may_take = int(gpu.capacity_bytes * options.cuda_memory_fraction * WIGGLE_ROOM)
    least, most = (max(0, may_take - taken - reserved) // token + slots for taken in outside[::-1])
    return TgiServing(
        weights_bytes=weights,
        warm_up_bytes=reserved - weights,
        outside_bytes=outside,
        may_take_bytes=may_take,
        cache_bytes=(least * token, most * token),
        token_bytes=token,
        tokens=(least, most),
        max_batch_prefill_tokens=prefill,
        max_total_tokens=options.max_total_tokens or min(least, config.max_position_embeddings),
        max_concurrent_requests=options.max_concurrent_requests,
        starts=reserved + outside[1] <= gpu.capacity_bytes * options.cuda_memory_fraction,
    )


def _check(config: DecoderConfig, gpu: Gpu, options: TgiOptions) -> None:
    if config.model_type not in _FAMILIES:
        raise NotModelledError(
            f"{config.model_type} in TGI is not modelled",
            hint=f"there is {', '.join(sorted(_FAMILIES))}; --engine vllm has more",
        )
    if options.quantize is not None:
        raise NotModelledError(
            f"quantize {options.quantize!r} is not modelled: TGI joins, repacks and quantises"
            " weights in ways of its own",
            hint="--engine vllm --quantization has rules for awq, gptq, fp8 and bitsandbytes",
        )
    if config.head_width not in _HEADS or gpu.compute_capability < _AMPERE:
        raise NotModelledError(
            f"TGI's cache for heads of {config.head_width} on {gpu.name} is not modelled",
            hint="FlashInfer's is: heads of 64, 128 or 256, compute capability 8.0 and more",
        )
    if options.num_shard > 1:
        raise NotModelledError(
            f"num_shard {options.num_shard} is not modelled: nobody measured NCCL's share in TGI",
            hint="--engine vllm --tensor-parallel-size has rules for several cards",
        )
    longest = options.max_total_tokens
    if longest is not None and longest > config.max_position_embeddings:
        raise VramBudgetError(
            f"max_total_tokens is {longest}; the model has {config.max_position_embeddings}"
            " positions"
        )


def default_prefill(config: DecoderConfig, gpu: Gpu, options: TgiOptions) -> int:
    """Return the launcher's `max_batch_prefill_tokens`: what a second's products are enough for."""
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    queries, shared = (
        config.num_attention_heads * config.head_width,
        config.kv_heads * config.head_width,
    )
    flop = (2 * (3 * queries + 2 * shared) * width + 6 * width * inner) * layers
    flops = _FLOPS.get(gpu.name.replace(" ", "-").lower(), 0) * _TERA
    optimal = flops // flop
    tokens = optimal if optimal > _LEAST_OPTIMAL else _USUAL_PREFILL
    tokens = min(tokens, config.max_position_embeddings)
    available = int(total_mib(gpu) * MIB * options.cuda_memory_fraction * _LAUNCHERS_WIGGLE_ROOM)
    layer = 3 * inner * width + queries + 2 * shared + queries * width
    model = (layer * layers + 2 * width * config.vocab_size) * _ITEMSIZE
    each = 4 * shared * layers + (inner + inner // 2) * 2 * 3
    return min(tokens, (available - model) // each) if available >= model else tokens


def _warm_up_requests(prefill: int, options: TgiOptions) -> tuple[int, int]:
    """Return the cache's tokens of the warm-up, and its requests."""
    left, slots, requests = prefill, 0, 0
    while left > 0:
        prompt = min(left, options.max_input_tokens or left)
        new = max(1, (options.max_total_tokens or prompt + 1) - prompt)
        slots, requests, left = slots + prompt + new - 1, requests + 1, left - prompt
    return slots, requests


class _Card:
    """An allocator that is asked for sizes, and told what dies."""

    def __init__(self) -> None:
        self.allocator, self.sizes = CachingAllocator(), list[int]()

    def make(self, size: int) -> int:
        """Allocate bytes; return the storage."""
        self.sizes.append(size)
        storage = len(self.sizes) - 1
        self.allocator.run([storage], self.sizes)
        return storage

    def free(self, storages: Iterable[int]) -> None:
        """Free storages."""
        self.allocator.run([~storage for storage in storages], self.sizes)


def _reserved(
    config: DecoderConfig, gpu: Gpu, tokens: int, requests: int, cache: tuple[int, int]
) -> tuple[int, int]:
    """Return reserved bytes once the model is loaded, and after the warm-up."""
    card = _Card()
    for joined in _weights(config):
        pieces = [card.make(_ITEMSIZE * n) for n in joined]
        if len(joined) > 1:
            card.make(_ITEMSIZE * sum(joined))
            card.free(pieces)
    for size in _BUFFERS:
        card.make(size)
    card.allocator.empty_cache()
    loaded = card.allocator.reserved_bytes
    for _ in range(cache[0]):
        card.make(cache[1])
        card.make(cache[1])
    _prefill(card, config, gpu, tokens, requests)
    return loaded, card.allocator.reserved_bytes


def _weights(config: DecoderConfig) -> Iterator[tuple[int, ...]]:
    """Yield elements of each tensor as it comes, of several those that are joined.

    The table of tokens is padded by a row: it is copied.
    """
    width, head, inner = config.hidden_size, config.head_width, config.intermediate_size
    queries, shared = config.num_attention_heads * head, config.kv_heads * head
    yield config.vocab_size * width, width
    for _ in range(config.num_hidden_layers):
        yield queries * width, shared * width, shared * width
        if config.model_type == "qwen2":
            yield queries, shared, shared
        yield (width * queries,)
        yield inner * width, inner * width
        yield (width * inner,)
        yield (width,)
        yield (width,)
    yield (width,)
    yield (config.vocab_size * width,)  # a head that is tied is read once more


def _prefill(card: _Card, config: DecoderConfig, gpu: Gpu, tokens: int, requests: int) -> None:
    """One forward pass over all tokens, as the model's variables hold its tensors."""
    hidden = tokens * config.hidden_size * _ITEMSIZE
    queries = tokens * config.num_attention_heads * config.head_width * _ITEMSIZE
    shared = tokens * config.kv_heads * config.head_width * _ITEMSIZE
    inner = tokens * config.intermediate_size * _ITEMSIZE
    states, residual = card.make(hidden), None
    for _ in range(4):  # cosines and sines: of all positions, and those of the tokens
        card.make(tokens * config.rotary_width // 2 * _ITEMSIZE)
    for layer in range(config.num_hidden_layers):
        held = [states] if residual is None else [states, residual]
        held.append(card.make(hidden))  # normed
        added = states if residual is None else card.make(hidden)
        if layer == 0:
            card.make(_HOPPER_WORKSPACE if gpu.compute_capability == (9, 0) else _WORKSPACE)
        qkv, copied, attended = (card.make(n) for n in (queries + 2 * shared, queries, queries))
        card.free([copied])
        held.append(card.make(hidden))  # what attention adds
        card.free([attended, qkv])
        held.append(card.make(hidden))  # normed
        summed = card.make(hidden)
        both, active, product = (card.make(n) for n in (2 * inner, inner, inner))
        card.free([active])
        out = card.make(hidden)
        card.free([product, both, *held, *({added} - {states})])
        states, residual = out, summed
    card.make(hidden)
    card.make(requests * config.vocab_size * _ITEMSIZE)
