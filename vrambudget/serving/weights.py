"""A decoder's weights as vLLM loads them: merged projections, each rank's part, in their order.

    embed_tokens     [V / tp, C]              V up to a multiple of 64
    qkv_proj         [(H + 2 Hkv) D / tp, C]  at least one key-value head on each rank
    o_proj           [C, H D / tp]
    rotary           [positions, rotary width], once, in the weights' type (SGLang: float32)
    gate_up_proj     [2 I / tp, C], down_proj [C, I / tp]
    experts          [E, 2 I / tp, C], [E, C, I / tp], and the router's gate [E, C]
    norms            [C]

Of quantised layers `serving.quantised` says the tensors.

They count as PyTorch's allocator hands them out: a tensor of 10 MiB and more gets a segment of its
own, in units of 2 MiB, and what is left of one up to 1 MiB belongs to it.

Source: vllm/model_executor/models/llama.py and its namesakes, layers/linear.py
(QKVParallelLinear, MergedColumnParallelLinear), layers/vocab_parallel_embedding.py
(pad_vocab_size), layers/rotary_embedding; distributed/utils.py (get_pp_indices). vLLM 0.19.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vrambudget.config.gpus import Gpu
from vrambudget.config.model_config import load_config
from vrambudget.dtypes import float32
from vrambudget.errors import NotModelledError
from vrambudget.models import config_class
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.latent import LatentConfig
from vrambudget.serving import latent
from vrambudget.serving.linear import Linear
from vrambudget.serving.quantised import Part, Quantisation
from vrambudget.tape.allocator import CachingAllocator

_VOCABULARY_MULTIPLE = 64
_FAMILIES = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "phi3"}
    | {"deepseek_v2", "deepseek_v3"}
)
_BIASED = frozenset({"qwen2"})  # q, k and v have biases
_NORMED_HEADS = frozenset({"qwen3", "qwen3_moe"})  # norms of q and k [D]
_APART = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_MERGED = frozenset({"phi3"})  # in its checkpoints, too
_NORMS = {"gemma2": 4}  # of a layer; two elsewhere


def decoder_of(config: object) -> DecoderConfig:
    """Return a configuration whose weights are known. Raises NotModelledError."""
    model_type = getattr(config, "model_type", "?")
    if model_type not in _FAMILIES or not isinstance(config, DecoderConfig):
        raise NotModelledError(
            f"serving {model_type} is not modelled",
            hint=f"there is {', '.join(sorted(_FAMILIES))}; its GGUF file with llama.cpp:"
            " `vrambudget run MODEL --gpu GPU`",
        )
    return config


def whole_experts(option: str) -> NotModelledError:
    """Return the error for a server whose cards have whole experts, not a part of each."""
    return NotModelledError(
        f"{option} is not modelled: whole experts on each card have workspaces of other sizes",
        hint="leave it out for tensor parallelism, where a card's weights are as many bytes if the"
        " cards divide the experts",
    )


def load_decoder(values: Mapping[str, Any], *, where: str) -> DecoderConfig:
    """Return the configuration of a file's keys. Raises VramBudgetError."""
    return decoder_of(load_config(values, config_class, where=where))


def layers_of(config: DecoderConfig, ranks: int) -> list[range]:
    """Return which layers each pipeline rank has (get_pp_indices)."""
    each, rest = divmod(config.num_hidden_layers, ranks)
    counts = [each] * ranks
    for i in range(2, rest + 2):
        counts[-i] += 1
    starts = [sum(counts[:rank]) for rank in range(ranks)]
    return [range(at, at + count) for at, count in zip(starts, counts, strict=True)]


def weight_bytes(
    config: DecoderConfig,
    layers: range,
    *,
    itemsize: int,
    tp: int,
    quantised: tuple[Quantisation, Gpu] | None = None,
) -> int:
    """Return allocated bytes of the weights of one rank, which has these layers.

    `quantised`: how, and for which card's kernels. Raises NotModelledError.
    """
    return _loaded(config, layers, tp, (itemsize, itemsize), quantised=quantised).allocated_bytes


def offloaded_bytes(
    config: DecoderConfig,
    layers: range,
    most: int,
    *,
    itemsize: int,
    tp: int,
    quantised: object | None = None,
) -> int:
    """Return allocated bytes of the weights that stay in main memory: `most`, and what is begun.

    vLLM takes one parameter after another of the layers until it has so many bytes
    (model_executor/offloader/uva.py, UVAOffloader._maybe_offload_to_cpu; 0.19). Raises
    NotModelledError.
    """
    if quantised is not None or isinstance(config, LatentConfig):
        raise NotModelledError("weights in main memory are modelled of dense 16-bit models alone")
    sizes: list[int] = []
    for layer in layers:
        tensors = (
            *_attention(config, tp, 0, f"model.layers.{layer}.self_attn"),
            *_mlp(config, tp, f"model.layers.{layer}.mlp"),
            *(config.hidden_size for _ in range(_NORMS.get(config.model_type, 2))),
        )
        for tensor in tensors:
            if sum(sizes) >= most:
                break
            elements = tensor if isinstance(tensor, int) else tensor.elements
            sizes.append(elements * itemsize)
    allocator = CachingAllocator()
    allocator.run(range(len(sizes)), sizes)
    return allocator.allocated_bytes


def reserved_bytes(
    config: DecoderConfig,
    layers: range,
    *,
    itemsize: int,
    tp: int,
    quantised: tuple[Quantisation, Gpu] | None = None,
) -> int:
    """Return what the card's free memory falls by as SGLang loads one rank's weights.

    Of latent attention it keeps the halves of kv_b_proj once more, laid out for its products.
    PyTorch's cache is emptied before the free memory is read.
    """
    halves = latent.absorbed(config, tp) if isinstance(config, LatentConfig) else ()
    last = [n * itemsize for n in halves] * len(layers)
    itemsizes = itemsize, float32.itemsize
    allocator = _loaded(config, layers, tp, itemsizes, quantised=quantised, last=last)
    allocator.empty_cache()
    return allocator.reserved_bytes


def _loaded(
    config: DecoderConfig,
    layers: range,
    tp: int,
    itemsizes: tuple[int, int],
    *,
    quantised: tuple[Quantisation, Gpu] | None = None,
    last: Iterable[int] = (),
) -> CachingAllocator:
    """Return an allocator that holds a rank's weights, and `last` bytes of others.

    The second of the `itemsizes` is the rotary table's.
    """
    sizes: list[int] = []
    events: list[int] = []

    def make(size: int) -> int:
        sizes.append(size)
        events.append(len(sizes) - 1)
        return events[-1]

    waiting: list[list[Part]] = []  # of each quantised layer; a tensor's number for its bytes
    is_lazy = quantised is not None and quantised[0].while_loading
    for tensor in _tensors(config, layers, tp, itemsizes[1] // itemsizes[0]):
        if isinstance(tensor, int):
            make(tensor * itemsizes[0])
        elif quantised is None or quantised[0].ignored.has(tensor):
            make(tensor.elements * itemsizes[0])
        else:
            parts = list(quantised[0].parts(tensor, quantised[1]))
            waiting.append(parts if is_lazy else [(make(size), new) for size, new in parts])
    for held in waiting:
        for old, new in [(make(size), new) for size, new in held] if is_lazy else held:
            if new is not None:
                make(new)
                events.append(~old)
    for size in last:
        make(size)
    allocator = CachingAllocator()
    allocator.run(events, sizes)
    return allocator


def _tensors(config: DecoderConfig, layers: range, tp: int, wide: int) -> Iterator[int | Linear]:
    """Yield elements of each tensor of one rank, or a linear layer, in the order of their making.

    `wide`: how often an element of the rotary table counts.
    """
    width, last = config.hidden_size, config.num_hidden_layers
    rows = -(-config.vocab_size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE // tp
    is_first, is_last = layers.start == 0, layers.stop == last
    if is_first or (is_last and config.tie_word_embeddings):
        yield rows * width
    for layer in layers:
        rotary = wide if layer == layers.start else 0
        if isinstance(config, LatentConfig):
            yield from latent.attention_tensors(config, tp, rotary=rotary)
            yield from latent.mlp_tensors(config, tp, layer)
        else:
            yield from _attention(config, tp, rotary, f"model.layers.{layer}.self_attn")
            yield from _mlp(config, tp, f"model.layers.{layer}.mlp")
        for _ in range(_NORMS.get(config.model_type, 2)):
            yield width
    if is_last:
        yield width
        if not config.tie_word_embeddings:
            yield rows * width


def _attention(config: DecoderConfig, tp: int, rotary: int, name: str) -> Iterator[int | Linear]:
    width, head = config.hidden_size, config.head_width
    queries, shared = config.num_attention_heads // tp * head, kv_heads(config, tp) * head
    outputs = (queries, shared, shared)
    yield _linear(config, f"{name}.qkv_proj", width, outputs)
    if config.model_type in _BIASED or getattr(config, "attention_bias", False):
        yield sum(outputs)
    yield _linear(config, f"{name}.o_proj", queries, (width,), ranks=tp)
    if rotary:  # the first layer's: all share it
        yield config.max_position_embeddings * config.rotary_width * rotary
    if config.model_type in _NORMED_HEADS:
        yield head
        yield head


def _linear(
    config: DecoderConfig, name: str, inputs: int, outputs: tuple[int, ...], ranks: int = 1
) -> Linear:
    """Return a layer; its checkpoint has the projections apart, but for Phi-3's."""
    start, _, last = name.rpartition(".")
    apart = () if config.model_type in _MERGED else _APART.get(last, ())
    names = tuple(f"{start}.{part}" for part in apart) or (name,)
    return Linear(name, names, inputs, outputs, inputs * ranks)


def _mlp(config: DecoderConfig, tp: int, name: str) -> Iterator[int | Linear]:
    width, experts = config.hidden_size, getattr(config, "experts", 0)
    inner = getattr(config, "moe_intermediate_size", config.intermediate_size) // tp
    if experts:
        yield experts * width  # the router's
        yield experts * 2 * inner * width
        yield experts * width * inner
    else:
        yield _linear(config, f"{name}.gate_up_proj", width, (inner, inner))
        yield _linear(config, f"{name}.down_proj", inner, (width,), ranks=tp)


def kv_heads(config: DecoderConfig, tp: int) -> int:
    """Return the key-value heads of one rank."""
    return max(1, config.kv_heads // tp)
