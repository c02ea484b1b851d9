"""What llama.cpp puts on a card: tensors of a file, a cache of keys and values, a compute buffer.

    model      tensors of the layers that are offloaded, the output and its norm; rows of quantised
               tensors up to a multiple of 512 elements, tensors up to one of 128 bytes. The table
               of tokens stays in main memory; a model without an output has a copy of it here
    cache      cells * elements of a token's keys (values) * the type's size, for each layer. Layers
               with a window have cells for it and a batch
    compute    the largest of the graph's tensors: logits [n_ubatch, V] float32 with the hidden
               states beside them, and without flash attention scores [H, cells, n_ubatch] float32.
               The graph's other tensors come on top: at least so much

Source: llama.cpp of August 2025 (in llama-cpp-python 0.3.16): src/llama-model.cpp (load_tensors,
create_memory), src/llama-kv-cache-unified.cpp, src/llama-kv-cache-unified-iswa.cpp,
src/llama-context.cpp; ggml/src/ggml-cuda/ggml-cuda.cu (get_alloc_size).
Not modelled: several cards, tensors that --override-tensor moves, draft models.
"""

from dataclasses import dataclass
from math import prod

from vrambudget.config.gpus import Gpu
from vrambudget.serving.gguf import GgufTensor
from vrambudget.serving.gguf_model import GgufModel
from vrambudget.serving.gguf_types import SIZES, row_bytes
from vrambudget.serving.options import LlamaCppOptions

VERSION = "of August 2025"
_ALIGNMENT = 128  # of tensors in a buffer
_ROW_PADDING = 512  # MATRIX_ROW_PADDING: elements
_FLASH_CELLS, _CELLS = 256, 32  # numbers of cells are multiples of this


@dataclass(frozen=True, slots=True)
class LlamaCppServing:
    """What the card and main memory hold, in bytes."""

    model_bytes: int
    host_bytes: int  # tensors in main memory
    cache_bytes: int
    cells: int  # of each slot
    window_cells: int | None  # of layers with a window
    slots: int
    compute_least_bytes: int
    context_bytes: tuple[int, int]  # of the driver
    capacity_bytes: int
    cache_of_a_token: int  # by all layers that see all tokens
    offloaded: int  # layers, the output among them
    layers: int

    @property
    def least_bytes(self) -> int:
        """What the card holds at least."""
        known = self.model_bytes + self.cache_bytes + self.compute_least_bytes
        return known + self.context_bytes[0]

    @property
    def fits(self) -> bool:
        """Whether what is known fits."""
        return self.least_bytes <= self.capacity_bytes


def serve(model: GgufModel, gpu: Gpu, options: LlamaCppOptions) -> LlamaCppServing:
    """Return what llama.cpp puts on a card."""
    offloaded = model.layers + 1
    if options.n_gpu_layers is not None:
        offloaded = min(options.n_gpu_layers, offloaded)
    first = max(0, model.layers - offloaded)
    placed = list(_placed(model, first, has_output=offloaded > model.layers))
    on_card = sum(_in_a_buffer(tensor) for tensor in placed)
    names = {tensor.name for tensor in placed}
    host = sum(_nbytes(t) for t in model.tensors if t.name not in names or "token_embd" in t.name)
    cells, window_cells = _cells(model, options)
    cached = range(first, model.layers)
    cache = sum(
        _cache_of(model, layer, options)
        * (cells if model.windows[layer] is None else window_cells or cells)
        for layer in cached
    )
    return LlamaCppServing(
        model_bytes=on_card,
        host_bytes=host,
        cache_bytes=cache * options.parallel,
        cells=cells,
        window_cells=window_cells,
        slots=options.parallel,
        compute_least_bytes=_compute(model, cells, options),
        context_bytes=gpu.context_range,
        capacity_bytes=gpu.capacity_bytes,
        cache_of_a_token=sum(
            _cache_of(model, layer, options) for layer in cached if model.windows[layer] is None
        ),
        offloaded=offloaded,
        layers=model.layers,
    )


def most_slots(model: GgufModel, gpu: Gpu, options: LlamaCppOptions, context: int) -> int:
    """Return how many slots of so many tokens the card has room for, as far as is known."""
    low, high = 0, 1
    while high <= 2**16 and _with_slots(model, gpu, options, context, high).fits:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _with_slots(model, gpu, options, context, middle).fits:
            low = middle
        else:
            high = middle
    return low


def _with_slots(
    model: GgufModel, gpu: Gpu, options: LlamaCppOptions, context: int, slots: int
) -> LlamaCppServing:
    changed = {"parallel": slots, "ctx_size": context * slots}
    return serve(model, gpu, options.model_copy(update=changed))


def _placed(model: GgufModel, first: int, *, has_output: bool) -> list[GgufTensor]:
    """Return the tensors on the card: those of the layers from `first` on, and the output."""
    layers = {f"blk.{layer}." for layer in range(first, model.layers)}
    names = {tensor.name for tensor in model.tensors}
    tied = "output.weight" not in names
    found = []
    for tensor in model.tensors:
        prefix = ".".join(tensor.name.split(".")[:2]) + "."
        is_output = tensor.name.startswith("output") or (tied and tensor.name.startswith("token_e"))
        is_factor = tensor.name.startswith("rope_") and first < model.layers
        if prefix in layers or is_factor or (has_output and is_output):
            found.append(tensor)
    return found


def _nbytes(tensor: GgufTensor) -> int:
    width, *rows = tensor.shape
    return row_bytes(tensor.kind, width) * prod(rows)


def _in_a_buffer(tensor: GgufTensor) -> int:
    nbytes, width = _nbytes(tensor), tensor.shape[0]
    if SIZES[tensor.kind][0] > 1 and width % _ROW_PADDING:
        nbytes += row_bytes(tensor.kind, _ROW_PADDING - width % _ROW_PADDING)
    return _up(nbytes, _ALIGNMENT)


def _cells(model: GgufModel, options: LlamaCppOptions) -> tuple[int, int | None]:
    """Return the cells of a slot, and of layers with a window."""
    multiple = _FLASH_CELLS if options.flash_attn else _CELLS
    whole = options.ctx_size or model.positions
    cells = _up(-(-whole // options.parallel), multiple)
    windows = [window for window in model.windows if window is not None]
    if not windows or options.swa_full:
        return cells, None
    return cells, min(cells, _up(windows[0] + options.ubatch_size, multiple))


def _cache_of(model: GgufModel, layer: int, options: LlamaCppOptions) -> int:
    """Return the bytes of a token in a layer's cache."""
    keys = row_bytes(options.cache_type_k.upper(), model.keys[layer])
    return keys + row_bytes(options.cache_type_v.upper(), model.values[layer])


def _compute(model: GgufModel, cells: int, options: LlamaCppOptions) -> int:
    rows = min(options.ubatch_size, options.batch_size)
    logits = (model.vocabulary + model.hidden) * rows * 4
    if options.flash_attn:
        return logits
    scores = cells * rows * model.heads * 4
    return max(logits, scores)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
