"""What a rank's weights take: as a server loads them, and as PyTorch's allocator hands them out.

`serving.parameters` says the tensors, of quantised layers `serving.quantised`. A tensor of 10 MiB
and more gets a segment of its own, in units of 2 MiB, and what is left of one up to 1 MiB belongs
to it.

Source: vllm/distributed/utils.py (get_pp_indices), model_executor/offloader/uva.py. vLLM 0.19.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from vrambudget.config.gpus import Gpu
from vrambudget.config.model_config import load_config
from vrambudget.config.settings import show
from vrambudget.dtypes import float32
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models import config_class
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.latent import LatentConfig
from vrambudget.serving.linear import Rotary, ServedLinear
from vrambudget.serving.parameters import layer_tensors, tensors_of
from vrambudget.serving.quantised import Quantisation, WeightPart
from vrambudget.serving.tabled import TABLED, tabled
from vrambudget.tape.allocator import CachingAllocator
from vrambudget.units import round_up

_FAMILIES = frozenset(
    (  # noqa: SIM905 - one line each would be a page
        "deepseek_v2 deepseek_v3 exaone4 gemma gemma2 gemma3 gemma3_text glm4 gpt_oss granite llama"
        " mistral mixtral olmo2 olmo3 phi3 qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3"
    ).split()
)
WHOLE_EXPERTS = "whole experts on each GPU have workspaces of other sizes"
_SCALES = 4  # of each attention, for queries, keys, values and probabilities in fp8
_ALONE_FROM, _SEGMENTS_OF = 20 * 2**20, 2 * 2**20  # max_split_size_mb:20
_WIDE_TABLES = frozenset({"gpt_oss"})  # rotary tables in float32


def load_decoder(
    values: Mapping[str, Any], *, where: str, text_alone: bool = False
) -> DecoderConfig:
    """Return the configuration of a file's keys, whose weights are known. Raises VramBudgetError.

    `text_alone`: without the tower for pictures that it may have.
    """
    model_type, text = values.get("model_type"), values.get("text_config")
    if not isinstance(quantised := values.get("quantization_config"), Mapping | None):
        raise VramBudgetError(f"quantization_config is {show(quantised)}: no object", where=where)
    if text_alone and isinstance(text, Mapping):
        values = {"model_type": f"{model_type}_text", **text}
    if isinstance(model_type, str) and model_type in TABLED:
        return tabled(values, where)
    if not isinstance(model_type, str) or model_type in _FAMILIES:
        config = load_config(values, config_class, where=where)
        if isinstance(config, DecoderConfig):
            return config
    raise NotModelledError(
        f"serving {model_type} is not modelled",
        hint=f"there is {', '.join(sorted(_FAMILIES | TABLED))}; its GGUF file with llama.cpp:"
        " `vrambudget run MODEL --gpu GPU`",
    )


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
    alone: bool = False,
    rotary_tables: bool = True,
) -> int:
    """Return allocated bytes of the weights of one rank, which has these layers.

    `quantised`: how, and for which GPU's kernels; `alone`: with max_split_size_mb:20, as newer
    versions load them; `rotary_tables`: whether those are on the GPU. Raises NotModelledError.
    """
    scales = [float32.itemsize] * _SCALES * len(layers)
    itemsizes = itemsize, itemsize
    allocator = _loaded(
        config,
        layers,
        tp,
        itemsizes,
        quantised=quantised,
        last=scales,
        alone=alone,
        rotary_tables=rotary_tables,
    )
    return allocator.allocated_bytes


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
        for tensor in layer_tensors(config, layer, tp):
            if sum(sizes) >= most:
                break
            elements = tensor if isinstance(tensor, int) else tensor.elements
            sizes.append(elements * itemsize)
    allocator = CachingAllocator()
    allocator.run(range(len(sizes)), sizes)
    return allocator.allocated_bytes


def reserved_bytes(config: DecoderConfig, layers: range, *, itemsize: int, tp: int) -> int:
    """Return what the GPU's free memory falls by as SGLang loads one rank's weights.

    PyTorch's cache is emptied before the free memory is read.
    """
    allocator = _loaded(config, layers, tp, (itemsize, float32.itemsize))
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
    alone: bool = False,
    rotary_tables: bool = True,
) -> CachingAllocator:
    """Return an allocator that holds a rank's weights, and `last` bytes of others.

    The second of the `itemsizes` is the rotary table's.
    """
    made = _Made(alone=alone)
    waiting: list[list[WeightPart]] = []  # of each quantised layer; a tensor's number for its bytes
    is_lazy = quantised is not None and quantised[0].while_loading
    wide = float32.itemsize if config.model_type in _WIDE_TABLES else itemsizes[1]
    for tensor in tensors_of(config, layers, tp):
        if isinstance(tensor, Rotary):
            if rotary_tables:
                made.table(tensor, wide)
        elif isinstance(tensor, int) or quantised is None or quantised[0].ignored.has(tensor):
            for elements in _elements(tensor):
                made.make(elements * itemsizes[0])
        else:
            parts = list(quantised[0].parts(tensor, quantised[1]))
            waiting.append(parts if is_lazy else [(made.make(size), new) for size, new in parts])
    for held in waiting:
        for old, new in [(made.make(size), new) for size, new in held] if is_lazy else held:
            if new is not None:
                made.make(new)
                made.free(old)
    for size in last:
        made.make(size)
    allocator = CachingAllocator()
    allocator.run(made.events, made.sizes)
    return allocator


class _Made:
    """Tensors as they are made and freed, in the allocator's form."""

    def __init__(self, *, alone: bool) -> None:
        self.sizes: list[int] = []
        self.events: list[int] = []
        self.alone = alone  # large ones have a segment each, and all of it

    def make(self, size: int) -> int:
        """Make a tensor; return its number."""
        is_alone = self.alone and size >= _ALONE_FROM
        self.sizes.append(round_up(size, _SEGMENTS_OF) if is_alone else size)
        self.events.append(len(self.sizes) - 1)
        return self.events[-1]

    def free(self, number: int) -> None:
        """Free one."""
        self.events.append(~number)

    def table(self, rotary: Rotary, itemsize: int) -> None:
        """Make a rotary table; what it is computed of leaves segments that weights are put into.

        angles, cosines, sines [P, D / 2] and both [P, D] in float32 (_compute_cos_sin_cache).
        """
        whole = rotary.positions * rotary.width * float32.itemsize
        parts = [self.make(whole // 2) for _ in range(3)]
        table = self.make(whole)
        for part in parts:
            self.free(part)
        if rotary.is_joined:
            self.make(whole)
            self.free(table)
            table = len(self.sizes) - 1
        if itemsize != float32.itemsize:
            self.make(rotary.positions * rotary.width * itemsize)
            self.free(table)


def _elements(tensor: int | ServedLinear) -> tuple[int, ...]:
    """Return those of a tensor as it is, of experts with those of their biases."""
    if isinstance(tensor, int):
        return (tensor,)
    return (tensor.elements, tensor.biases) if tensor.biases else (tensor.elements,)


def kv_heads(config: DecoderConfig, tp: int) -> int:
    """Return the key-value heads of one rank."""
    return max(1, config.kv_heads // tp)
