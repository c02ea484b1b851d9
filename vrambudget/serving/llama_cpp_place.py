"""Where llama.cpp puts a model's tensors: on a GPU, or in main memory.

    layers     the last ones on GPUs, the output the last of all: --n-gpu-layers 1 offloads it
               alone (in 2025-08 it went with all layers only); split among GPUs by
               --tensor-split, by default by the memory that is free
    output     a model without one has a copy of its table of tokens here
    others     the table of tokens stays in main memory; factors of rotary tables are wherever
               layers are; --override-tensor, --cpu-moe, --n-cpu-moe, --n-cpu-ffn go before all

In a buffer, rows of quantised tensors are up to a multiple of 512 elements, and tensors up to one
of 128 bytes (in main memory of 32).

Source: llama.cpp 0c1e570 of October 2026: src/llama-model.cpp (load_tensors),
src/llama-model-loader.cpp (create_tensor), common/arg.cpp, ggml/src/ggml-cuda/ggml-cuda.cu
(get_alloc_size). Of August 2025 (llama-cpp-python 0.3.16): the same files.
Not modelled: --split-mode row and tensor.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from struct import pack, unpack

from vrambudget.config.gpus import Gpu
from vrambudget.errors import VramBudgetError
from vrambudget.serving.ggml_builder import Weight
from vrambudget.serving.ggml_graph import ALIGNMENT, HOST, OF_HOST
from vrambudget.serving.gguf import GgufTensor
from vrambudget.serving.gguf_architectures import UNCACHED
from vrambudget.serving.gguf_model import GgufModel
from vrambudget.serving.gguf_types import SIZES, row_bytes
from vrambudget.serving.options import LlamaCppOptions
from vrambudget.units import round_up

_TELLING = 8  # layers of a kind: what they leave free settles later
_ROW_PADDING = 512  # MATRIX_ROW_PADDING: elements
_INPUT = re.compile(r"(token_embd|position_embd|token_types|per_layer_token_embd)\b")
_EXPERTS = re.compile(r"^blk\.\d+\.ffn_(up|down|gate|gate_up)_(ch|)exps")
_MLP = re.compile(r"^blk\.\d+\.ffn_(up|down|gate)\.")


@dataclass(frozen=True, slots=True)
class TensorPlacement:
    """Where layers and tensors lie: a device's number, or HOST."""

    offloaded: int  # layers, the output among them
    devices: tuple[int, ...]  # of each layer, the output last
    model_bytes: Mapping[int, int]
    read_bytes: tuple[int, int]  # of weights, for each token: from GPUs, from main memory
    layer_bytes: tuple[int, ...]  # of each layer's weights that lie where it is, the output last
    layers: tuple[Mapping[str, Weight], ...]  # "attn_q", "attn_q.bias", of each layer
    others: Mapping[str, Weight]  # "output_norm", of no layer
    telling: tuple[int, ...]  # layers that a graph needs, the others being as these
    has_gpus: bool
    is_overridden: bool  # by --override-tensor and its like


def place(model: GgufModel, gpus: Sequence[Gpu], options: LlamaCppOptions) -> TensorPlacement:
    """Return where a model's tensors lie. Raises VramBudgetError for options that clash."""
    offloaded = model.layers + 1 if gpus else 0
    if options.n_gpu_layers is not None:
        offloaded = min(options.n_gpu_layers, offloaded)
    devices = _devices(model, gpus, options, offloaded)
    placed = _placed(model, options, devices, len(gpus))
    sizes = dict.fromkeys((HOST, *range(len(gpus))), 0)
    of_layers = [0] * len(devices)
    for tensor, where in placed:
        size = _size(tensor.kind, tensor.shape, is_host=where == HOST)
        sizes[where] += size
        layer, _ = _named(tensor.name)
        of_layers[layer] += size * (where == devices[layer])
    weights = _by_layer(placed, model.layers)
    return TensorPlacement(
        offloaded=offloaded,
        devices=tuple(devices),
        model_bytes=sizes,
        read_bytes=_read_for_a_token(model, placed),
        layer_bytes=tuple(of_layers),
        layers=weights[:-1],
        others=weights[-1],
        telling=tuple(_telling(model, devices, weights)),
        has_gpus=bool(gpus),
        is_overridden=bool(
            options.override_tensor or options.cpu_moe or options.n_cpu_moe or options.n_cpu_ffn
        ),
    )


def _by_layer(
    placed: list[tuple[GgufTensor, int]], layers: int
) -> tuple[Mapping[str, Weight], ...]:
    """Return the weights of each layer, and of none."""
    found: list[dict[str, Weight]] = [{} for _ in range(layers + 1)]
    for tensor, where in placed:
        layer, name = _named(tensor.name)
        size = _size(tensor.kind, tensor.shape, is_host=False)
        found[layer][name] = Weight(tensor.shape, size, where)
    return tuple(found)


@cache
def _named(tensor: str) -> tuple[int, str]:
    """Return a tensor's layer, -1 for none, and its name there: "attn_q", "attn_q.bias"."""
    name = tensor.replace(".weight", "")
    if not name.startswith("blk."):
        return -1, name
    _, layer, name = name.split(".", 2)
    return int(layer), name


@cache
def _size(kind: str, shape: tuple[int, ...], *, is_host: bool) -> int:
    """Return what a tensor takes in main memory, or on a GPU."""
    size = _in_file(kind, shape)
    return round_up(size, OF_HOST) if is_host else in_a_buffer(size, kind, shape[0])


@cache
def _in_file(kind: str, shape: tuple[int, ...]) -> int:
    return row_bytes(kind, shape[0]) * prod(shape[1:])


def _telling(
    model: GgufModel, devices: list[int], weights: tuple[Mapping[str, Weight], ...]
) -> Iterator[int]:
    """Yield a few layers of each kind, and the last: in a graph the others need no more.

    Of a model with recurrent layers all: what one reads first stands before the layer before it.
    """
    if any(model.states):
        yield from range(model.layers)
        return
    seen: dict[object, int] = {}
    for layer, of in enumerate(weights[:-1]):
        parts = ((n, w.shape, w.device, w.nbytes * (w.device == HOST)) for n, w in of.items())
        kind = (devices[layer], model.windows[layer], model.keys[layer], *sorted(parts))
        seen[kind] = seen.get(kind, 0) + 1
        is_reader = "attn_q" in of and any(model.keys) and not model.keys[layer]  # all copies stay
        is_edge = len(set(devices[max(layer - 1, 0) : layer + 2])) > 1
        if seen[kind] <= _TELLING or layer == model.layers - 1 or is_reader or is_edge:
            yield layer


def _devices(
    model: GgufModel, gpus: Sequence[Gpu], options: LlamaCppOptions, offloaded: int
) -> list[int]:
    """Return where each layer is, the output last."""
    whole = model.layers + (not options.is_old)  # did the output count first?
    first = max(0, whole - offloaded)
    if options.split_mode == "none" or len(gpus) < 2:  # noqa: PLR2004 - nothing to split
        only = options.main_gpu if options.split_mode == "none" else 0
        if not 0 <= only < max(1, len(gpus)):
            raise VramBudgetError(f"main_gpu is {only}; there are {len(gpus)} GPUs, from 0")
        return [
            only if first <= layer < first + offloaded else HOST
            for layer in range(model.layers + 1)
        ]
    parts = [float(gpu.capacity_bytes - gpu.context_range[0]) for gpu in gpus]
    if options.tensor_split:
        parts = _parts(options.tensor_split, len(gpus))
    ends = [_single(sum(parts[: n + 1]) / sum(parts)) for n in range(len(gpus))]
    found = []
    for layer in range(model.layers + 1):
        at = _single((layer - first) / max(1, offloaded))
        is_here = first <= layer < first + offloaded
        found.append(next(n for n, e in enumerate(ends) if e > at) if is_here else HOST)
    return found


def _parts(text: str, gpus: int) -> list[float]:
    """Return the part of each GPU: "3,1", "3/1"."""
    try:
        found = [float(part) for part in re.split("[,/]", text)]
    except ValueError:
        found = []
    if not 0 < len(found) <= gpus or min(found) < 0 or not 0 < sum(found) < float("inf"):
        raise VramBudgetError(
            f"tensor_split is {text!r}; it should be a part for each of {gpus} GPUs, like 3,1"
        )
    return [*found, *([0.0] * (gpus - len(found)))]


def _single(x: float) -> float:
    """Return x in float32, in which llama.cpp compares."""
    rounded: float = unpack("<f", pack("<f", x))[0]
    return rounded


def _placed(
    model: GgufModel, options: LlamaCppOptions, devices: list[int], gpus: int
) -> list[tuple[GgufTensor, int]]:
    """Return every tensor with where it lies; copies are there twice."""
    outputs = (tensor.name == "output.weight" for tensor in model.tensors)
    is_headless = model.architecture in UNCACHED - {"gemma-embedding"}  # these make no logits
    tied = not is_headless and not any(outputs)
    overrides = _overrides(options, gpus)
    found = []
    for tensor in model.tensors:
        for device in _of_tensor(tensor, devices, tied=tied):
            name = tensor.name.partition(".lora_")[0]
            where = next((to for rule, to in overrides if rule.search(name)), device)
            if where == device and _stays(options, tensor.name):
                where = HOST
            found.append((tensor, where))
    return found


def _of_tensor(tensor: GgufTensor, devices: list[int], *, tied: bool) -> list[int]:
    """Return the devices that have it, before any is overridden."""
    name = tensor.name
    if _INPUT.match(name):
        is_copied = tied and name == "token_embd.weight" and devices[-1] != HOST
        return [HOST, devices[-1]] if is_copied else [HOST]
    if name.startswith("blk."):
        return [devices[_named(name)[0]]]
    if name.startswith("per_layer_"):
        return devices[:1]
    if name.startswith("rope_"):
        return sorted(set(devices[:-1]))
    return [devices[-1]]


def _overrides(options: LlamaCppOptions, gpus: int) -> list[tuple[re.Pattern[str], int]]:
    """Return the rules of --override-tensor, in their order."""
    rules = []
    for rule in filter(None, options.override_tensor.split(",")):
        pattern, _, place = rule.rpartition("=")
        match = re.fullmatch(r"CPU|CUDA_Host|CUDA(\d{1,3})", place)
        if not pattern or not match or int(match[1] or 0) >= max(gpus, 1):
            raise VramBudgetError(
                f"override_tensor has {rule!r}; it should be a regular expression, =, and CPU"
                " or CUDA0"
            )
        try:
            rules.append((re.compile(pattern), int(match[1]) if match[1] else HOST))
        except re.error as error:
            raise VramBudgetError(f"override_tensor has {pattern!r}: {error}") from None
    return rules


def _stays(options: LlamaCppOptions, tensor: str) -> bool:
    """Return whether --cpu-moe, --n-cpu-moe or --n-cpu-ffn keep a tensor in main memory."""
    if _is_expert(tensor):
        return options.cpu_moe or _named(tensor)[0] < options.n_cpu_moe
    return _MLP.match(tensor) is not None and _named(tensor)[0] < options.n_cpu_ffn


@cache
def _is_expert(tensor: str) -> bool:
    """Return whether a tensor is experts' own."""
    return _EXPERTS.search(tensor) is not None


def _read_for_a_token(model: GgufModel, placed: list[tuple[GgufTensor, int]]) -> tuple[int, int]:
    """Return the bytes of weights that a token reads from GPUs, and from main memory."""
    read = [0, 0]
    for tensor, where in placed:
        if _INPUT.match(tensor.name) and where == HOST:
            continue  # one row of it
        part = nbytes(tensor)
        if model.experts and _is_expert(tensor.name):
            part = part * model.experts_used // model.experts
        read[where == HOST] += part
    return read[0], read[1]


def nbytes(tensor: GgufTensor) -> int:
    """Return the bytes of a tensor in its file."""
    return _in_file(tensor.kind, tensor.shape)


def in_a_buffer(size: int, kind: str, width: int) -> int:
    """Return what a tensor of so many bytes takes on a GPU: kernels read whole rows."""
    rest = width % _ROW_PADDING
    if SIZES[kind][0] > 1 and rest:
        size += row_bytes(kind, _ROW_PADDING - rest)
    return round_up(size, ALIGNMENT)
