"""Which heads llama.cpp's attention kernel for CUDA knows.

Source: llama.cpp b11549 of October 2026: ggml/src/ggml-cuda/fattn.cu
(ggml_cuda_get_best_fattn_kernel).
"""

from vrambudget.serving.gguf_architectures import UNCACHED
from vrambudget.serving.gguf_model import GgufModel

_KERNELS = frozenset({40, 64, 72, 80, 96, 112, 128, 256})  # widths of heads that one has
_WIDEST = 512  # which several queries have to share
_SHARED = {(192, 128): 8, (320, 256): 32}  # widths of keys and values: queries that share one


def has_kernel(model: GgufModel, layer: int) -> bool:
    """Return whether it knows a layer's heads."""
    is_encoder = model.architecture in UNCACHED
    if not is_encoder and not (model.keys[layer] and any(model.values)):
        return True  # no attention, an earlier layer's keys, or latent rows
    is_window = model.windows[layer] is not None
    keys, values = model.window_head if is_window else (model.head_keys, model.head_values)
    shared = 1 if is_encoder else model.heads * keys // model.keys[layer]
    if keys == values:
        return keys in _KERNELS or (keys == _WIDEST and shared > 1)
    return (keys, values) in _SHARED and shared % _SHARED[keys, values] == 0
