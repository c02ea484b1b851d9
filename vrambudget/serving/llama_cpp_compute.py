"""llama.cpp's compute buffers: the largest tensors of a graph that a device needs at once.

    scores     without flash attention: scores [H, cells, rows] and their mask in float32, with the
               queries twice, the residual stream and its norm; where one matrix makes queries, keys
               and values, all of these
    MLP        the residual stream twice, its norm, and three tensors of the MLP's width; with
               flash attention the mask in float16 (since 2026)
    output     logits float32 and the hidden states beside them: of all rows of a physical batch, of
               a server since 2026 of one row for each slot

How the allocator fits them together, weights that are copied for layers in main memory, and further
copies of an input come on top: at least so much.

Source: llama.cpp 0c1e570 of October 2026: src/llama-context.cpp (sched_reserve),
src/llama-graph.cpp (build_attn_mha, build_ffn, build_attn_inp_kq_mask), ggml/src/ggml-alloc.c,
tools/server/server-context.cpp (server_output_limits).
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
    layer = (3 * model.hidden + 3 * _widest(model)) * rows * _BYTES
    if not flash:
        scores = (model.heads + 1) * cells + 2 * model.hidden + _queries(model)
        layer = max(layer, scores * rows * _BYTES)
    elif options.engine_version != "2025-08":
        layer += cells * rows * _BYTES // 2  # the mask in float16
    found = dict.fromkeys(devices[:-1], layer)
    logits = (model.vocabulary + model.hidden) * min(rows, outputs) * _BYTES
    found[devices[-1]] = max(found.get(devices[-1], 0), logits)
    return found


def _queries(model: GgufModel) -> int:
    """Return the elements of a token's queries, twice, or of them and what is made with them."""
    for tensor in model.tensors:
        if tensor.name == "blk.0.attn_qkv.weight":
            keys = model.keys[0] + model.values[0]
            return 2 * tensor.shape[1] - keys
        if tensor.name == "blk.0.attn_q.weight":
            return 2 * tensor.shape[1]
    return 0


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
