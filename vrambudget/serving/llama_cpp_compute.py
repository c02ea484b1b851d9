"""llama.cpp's compute buffers: the largest tensors of a graph that a device needs at once.

    layers     the residual stream, its norm, and three tensors of the MLP's width, for each row of
               a physical batch; without flash attention scores [H, cells, rows] float32
    output     logits float32 of all rows and the hidden states beside them; of a server since
               2026 of one row for each slot

The graph's other tensors come on top: at least so much.

Source: llama.cpp 0c1e570 of October 2026: src/llama-context.cpp (sched_reserve),
src/llama-graph.cpp (build_ffn), tools/server/server-context.cpp (server_output_limits).
"""

from collections.abc import Sequence

from vrambudget.serving.gguf import GgufTensor
from vrambudget.serving.gguf_model import GgufModel
from vrambudget.serving.options import LlamaCppOptions

_WIDE = ("ffn_up.", "ffn_up_shexp.")
_BYTES = 4  # of float32


def compute_bytes(
    model: GgufModel,
    options: LlamaCppOptions,
    devices: Sequence[int],
    *,
    cells: int,
    outputs: int,
    flash: bool,
) -> dict[int, int]:
    """Return the compute buffer of each device. `outputs`: rows of logits."""
    rows = min(options.ubatch_size, options.batch_size, max(cells, 1))
    layer = (2 * model.hidden + 3 * _widest(model)) * rows * _BYTES
    if not flash:
        layer = max(layer, model.heads * cells * rows * _BYTES)
    found = dict.fromkeys(devices[:-1], layer)
    logits = (model.vocabulary + model.hidden) * min(rows, outputs) * _BYTES
    found[devices[-1]] = max(found.get(devices[-1], 0), logits)
    return found


def _widest(model: GgufModel) -> int:
    """Return the elements of a token's hidden states within the widest MLP."""
    return max((_width(tensor, model) for tensor in model.tensors), default=0)


def _width(tensor: GgufTensor, model: GgufModel) -> int:
    name = tensor.name
    if "ffn_up_exps.w" in name and len(tensor.shape) > 1:
        return tensor.shape[1] * model.experts_used
    if any(f"{wide}w" in name for wide in _WIDE) and len(tensor.shape) > 1:
        return tensor.shape[1]
    return 0
