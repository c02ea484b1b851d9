"""What llama.cpp puts on each GPU and in main memory: tensors of a file, a cache, compute buffers.

    model      `serving.llama_cpp_place`
    cache      cells * elements of a token's keys (values) * the type's size, for each layer, where
               the layer is. Layers with a window have cells for it and a batch; recurrent layers
               a state for each sequence
    compute    `serving.llama_cpp_compute`

Source: llama.cpp 0c1e570 of October 2026: src/llama-model.cpp (create_memory),
src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp, src/llama-memory-recurrent.cpp,
src/llama-context.cpp, tools/server/server.cpp.
Of August 2025 (llama-cpp-python 0.3.16): the same files.
Beside a model: `serving.beside`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

from vrambudget.config.bandwidths import MAIN_MEMORY, bandwidth
from vrambudget.config.gpus import Gpu
from vrambudget.serving.ggml_graph import HOST
from vrambudget.serving.gguf_model import GgufModel
from vrambudget.serving.gguf_types import row_bytes
from vrambudget.serving.llama_cpp_compute import compute_bytes
from vrambudget.serving.llama_cpp_place import TensorPlacement, in_a_buffer, place
from vrambudget.serving.options import LlamaCppOptions
from vrambudget.units import round_up

VERSIONS = {
    "2026-10": "of October 2026 (b11549)",
    "2026-09": "of September 2026 (0c1e570)",
    "2026-05": "of May 2026 (b9093)",
    "2025-08": "of August 2025 (llama-cpp-python 0.3.16)",
    "2025-05": "of May 2025 (b5300)",
}
_FLASH_CELLS, _CELLS = 256, 32  # numbers of cells are multiples of this
_BACKENDS = {"amd": "ROCm", "apple": "MTL"}  # of other makers' GPUs


@dataclass(frozen=True, slots=True)
class Held:
    """What a device holds, in bytes."""

    name: str  # "CUDA0", "CPU"
    model_bytes: int
    cache_bytes: int
    compute_bytes: int
    layers: int  # the output among them

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.model_bytes + self.cache_bytes + self.compute_bytes


@dataclass(frozen=True, slots=True)
class Beside:
    """What another file holds on the same devices: a draft model's, or a projector's."""

    name: str
    gpus: tuple[Held, ...]
    host: Held


@dataclass(frozen=True, slots=True)
class LlamaCppServing:
    """What GPUs and main memory hold."""

    gpus: tuple[Held, ...]
    host: Held
    cells: int  # of each stream
    window_cells: int | None  # of layers with a window
    streams: int
    slots: int
    context_bytes: tuple[tuple[int, int], ...]  # of the driver, on each GPU
    capacity_bytes: tuple[int, ...]
    ram_bytes: int | None
    offloaded: int  # layers, the output among them
    layers: int
    layer_bytes: tuple[int, ...]  # weights and cache of each where it is, the output last
    read_bytes: tuple[int, int]  # of weights, for each token: from GPUs, from main memory
    bandwidths: tuple[int | None, ...]  # GB/s of each GPU
    beside: tuple[Beside, ...] = ()

    @property
    def host_bytes(self) -> int:
        """What lies in main memory."""
        return self.host.bytes + sum(each.host.bytes for each in self.beside)

    @property
    def tokens_per_second(self) -> tuple[float, float] | None:
        """How fast one request decodes at most: the bytes that a token reads over bandwidths.

        The least with a full context and slow main memory; None where a bandwidth is not known, a
        draft model decides how many tokens come of a step, or a file has no layer to read.
        """
        is_drafted = any(each.name == "draft" for each in self.beside)
        if None in self.bandwidths or is_drafted or not any(self.read_bytes):
            return None
        on_gpus, in_ram = self.read_bytes
        weights = sum(held.model_bytes for held in self.gpus) or 1

        def seconds(ram: int, full: bool) -> float:  # noqa: FBT001 - a local
            found = (in_ram + full * self.host.cache_bytes) / ram
            for held, speed in zip(self.gpus, self.bandwidths, strict=True):
                of_gpu = on_gpus * held.model_bytes / weights + full * held.cache_bytes
                found += of_gpu / (speed or 1)
            return found / 1e9

        slow, fast = MAIN_MEMORY
        return 1 / seconds(slow, True), 1 / seconds(fast, False)  # noqa: FBT003 - a local

    @property
    def _held(self) -> list[tuple[Held, ...]]:
        return [self.gpus, *(each.gpus for each in self.beside)]

    @property
    def left_bytes(self) -> int:
        """What is left on the GPU with the least left, below 0 where it is too small."""
        left = [
            capacity - sum(each[number].bytes for each in self._held) - context[0]
            for number, (capacity, context) in enumerate(
                zip(self.capacity_bytes, self.context_bytes, strict=True)
            )
        ]
        return min(left, default=0)

    @property
    def ram_left_bytes(self) -> int | None:
        """What is left of main memory; None where nobody said how much there is."""
        return None if self.ram_bytes is None else self.ram_bytes - self.host_bytes

    @property
    def fits(self) -> bool:
        """Whether what is known fits, on each GPU and in main memory."""
        return self.left_bytes >= 0 and (self.ram_left_bytes or 0) >= 0

    @property
    def least_bytes(self) -> int:
        """What the GPUs hold at least."""
        held = sum(held.bytes for each in self._held for held in each)
        return held + sum(low for low, _ in self.context_bytes)


def serve(
    model: GgufModel,
    gpus: Sequence[Gpu],
    options: LlamaCppOptions,
    ram_bytes: int | None = None,
    placement: TensorPlacement | None = None,
) -> LlamaCppServing:
    """Return what llama.cpp puts on each GPU. Raises VramBudgetError for options that clash.

    `placement`: what `place` returned for the same model, GPUs and split.
    """
    placed = placement or place(model, gpus, options)
    cells = _Cells(model, options)
    caches, of_layers = cached_bytes(model, options, placed)
    slots = cells.slots
    computed = compute_bytes(
        model,
        options,
        placed,
        cells=(cells.cells, cells.window_cells),
        outputs=options.outputs,
        flash=uses_flash(model, options),
    )
    held = {
        device: Held(
            "CPU" if device == HOST else f"{_BACKENDS.get(gpus[device].key, 'CUDA')}{device}",
            model_bytes,
            caches[device],
            computed.get(device, 0),
            placed.devices.count(device),
        )
        for device, model_bytes in placed.model_bytes.items()
    }
    return LlamaCppServing(
        gpus=tuple(held[device] for device in range(len(gpus))),
        host=held[HOST],
        cells=cells.cells,
        window_cells=cells.window_cells,
        streams=cells.streams,
        slots=slots,
        context_bytes=tuple(gpu.context_range for gpu in gpus),
        capacity_bytes=tuple(gpu.capacity_bytes for gpu in gpus),
        ram_bytes=ram_bytes,
        offloaded=placed.offloaded,
        layers=model.layers,
        layer_bytes=tuple(map(add, placed.layer_bytes, (*of_layers, 0))),
        read_bytes=placed.read_bytes,
        bandwidths=tuple(map(bandwidth, gpus)),
    )


def cached_bytes(
    model: GgufModel, options: LlamaCppOptions, placed: TensorPlacement
) -> tuple[dict[int, int], list[int]]:
    """Return the bytes of each device's cache, and what each layer has of it where it is."""
    cells, found, of_layers = _Cells(model, options), dict.fromkeys(placed.model_bytes, 0), []
    for layer in range(model.layers):
        where = HOST if options.no_kv_offload else placed.devices[layer]
        size = cells.of_layer(layer, is_padded=where != HOST)
        found[where] += size
        of_layers.append(size * (where == placed.devices[layer]))
    return found, of_layers


class _Cells:
    """How many tokens each layer's cache has cells for."""

    def __init__(self, model: GgufModel, options: LlamaCppOptions) -> None:
        self.model, self.options = model, options
        self.slots, self.streams = options.slots_and_streams
        multiple = _CELLS if options.is_old and not uses_flash(model, options) else _FLASH_CELLS
        whole = options.ctx_size or model.positions
        self.cells = round_up(round_up(whole, multiple) // self.streams, multiple)
        windows = [window for window in model.windows if window is not None]
        self.window_cells: int | None = None
        if windows and not options.swa_full:
            sequences = self.slots if self.streams == 1 else 1
            window = windows[0] * sequences + options.ubatch_size
            self.window_cells = round_up(min(self.cells, window), multiple)

    def of_layer(self, layer: int, *, is_padded: bool) -> int:
        """Return the bytes of a layer's cache; on GPUs it ends as a weight does."""
        model, options = self.model, self.options
        cells = self.cells
        if model.windows[layer] is not None:
            cells = self.window_cells or cells
        total = 4 * model.states[layer] * self.slots
        values = model.values[layer]
        if model.keys[layer] and not values and options.is_old:
            values = model.head_values  # of a latent row they were kept beside it
        if values and not uses_flash(model, options):
            values = max(model.values)  # transposed, all are as wide as the widest
        for kind, width in (
            (options.cache_type_k.upper(), model.keys[layer]),
            (options.cache_type_v.upper(), values),
            (options.cache_type_k.upper(), model.indexed[layer]),
        ):
            size = row_bytes(kind, width) * cells * self.streams
            total += in_a_buffer(size, kind, width) if is_padded and size else size
        return total


def uses_flash(model: GgufModel, options: LlamaCppOptions) -> bool:
    """Return whether attention is computed without a matrix of scores; auto: it is, but Grok's."""
    if model.architecture == "grok":
        return False
    if options.flash_attn == "auto":
        return not options.is_old
    return options.flash_attn == "on"
