"""llama.cpp's compute buffers: what a device needs of a graph's tensors at once.

    MLP        the tensors of its width that live together (3 with a gate, 1 without; of experts
               those of all that a token takes, or their outputs twice), and the residual stream
               four times on a GPU, five times in main memory, where the input is, too
    masks      with flash attention float16 [cells, rows], one more for layers with a window
    scores     without it, scores [H, cells, rows] and their mask in float32, with the queries
               twice, the residual stream and its norm; where one matrix makes queries, keys and
               values, all of these
    output     logits float32 and the hidden states beside them: of all rows of a physical batch, of
               a server since 2026 of one row for each slot

Weights that are copied for layers in main memory come on top: then at least so much. Of 2025-08
with flash attention it is at least so much, too.

Source: llama.cpp 0c1e570 of October 2026: src/llama-context.cpp (sched_reserve),
src/llama-graph.cpp (build_attn_mha, build_ffn, build_moe_ffn, build_attn_inp_kq_mask),
ggml/src/ggml-alloc.c, tools/server/server-context.cpp (server_output_limits); how often the
residual stream is there: buffers that its CPU backend prints of 22 families.
"""

from collections.abc import Sequence

from vrambudget.serving.gguf_model import GgufModel
from vrambudget.serving.options import LlamaCppOptions

_BYTES = 4  # of float32


def compute_bytes(
    model: GgufModel,
    options: LlamaCppOptions,
    devices: Sequence[int],
    *,
    cells: tuple[int, ...],
    outputs: int,
    flash: bool,
) -> dict[int, int]:
    """Return the compute buffer of each device.

    `devices`: of each layer, the output last, -1 for main memory; `cells`: of each cache;
    `outputs`: rows of logits.
    """
    rows = min(options.ubatch_size, options.batch_size, max(*cells, 1))
    is_old = options.engine_version == "2025-08"
    widest, masks = _widest(model), 0 if is_old else sum(cells) * rows * _BYTES // 2
    gpu, host = (3, 3) if is_old else (4, 5)
    found = {-1: gpu * model.hidden * rows * _BYTES + masks}
    for device in devices[:-1]:
        stream = (host if device < 0 else gpu) * model.hidden
        found[device] = (widest + stream) * rows * _BYTES + (masks if flash else 0)
        if not flash:
            scores = (model.heads + 1) * cells[0] + 2 * model.hidden + _queries(model)
            found[device] = max(found[device], scores * rows * _BYTES)
    logits = (model.vocabulary + model.hidden) * min(rows, outputs) * _BYTES
    found[devices[-1]] = max(found.get(devices[-1], 0), logits)
    return found


def _queries(model: GgufModel) -> int:
    """Return the elements of a token's queries, twice, or of them and what is made with them."""
    shapes = _shapes(model)
    if joint := shapes.get("attn_qkv"):
        return 2 * joint[1] - model.keys[0] - model.values[0]
    return 2 * shapes["attn_q"][1] if "attn_q" in shapes else 0


def _widest(model: GgufModel) -> int:
    """Return the elements of a token that live together within the widest MLP."""
    shapes = _shapes(model)
    down = shapes.get("ffn_down", (0, 0))[0]
    has_gate = "ffn_gate" in shapes or shapes.get("ffn_up", (0, 0))[1] == 2 * down
    experts = shapes.get("ffn_down_exps", (0, 0))
    used = model.experts_used * max(3 * experts[0], 2 * experts[1])
    return max(3 * down if has_gate else down, used)


def _shapes(model: GgufModel) -> dict[str, tuple[int, ...]]:
    """Return the shape of each matrix that layers have, of the last layer that has it."""
    return {
        tensor.name.split(".")[2]: tensor.shape
        for tensor in model.tensors
        if tensor.name.endswith(".weight") and len(tensor.shape) > 1 and "blk." in tensor.name
    }
