"""What `ollama run MODEL` starts: llama-server, with a context and a batch by the GPUs' memory.

Source: Ollama fb307609 of August 2026: server/routes.go (Serve: defaultNumCtx), server/sched.go
(load, selectLlamaServerPlacement, automaticGenerationBatch), llm/llama_server.go
(startLlamaServer, PredictServerVRAM, DefaultEmbeddingNumBatchForContext).
Not modelled: a second try with a shorter context, where llama-server ran out of memory.
"""

from collections.abc import Sequence

from vrambudget.config.gpus import Gpu
from vrambudget.serving.gguf_model import GgufModel
from vrambudget.serving.llama_cpp_place import nbytes
from vrambudget.serving.options import LlamaCppOptions

USUAL_KIND = "Q4_K_M"
"""Of most of its library's files, where a tag names none; older ones are Q4_0, as a tag may say."""
_GIB = 2**30
_CONTEXTS = ((47 * _GIB, 262_144), (23 * _GIB, 32_768), (0, 4096))
_BATCHES = ((32_768, 2048, 60, 2 * _GIB), (4096, 1024, 75, 3 * _GIB // 4))
"""From more tokens than the first on: a batch, if this part of the memory (in %) holds what is
predicted, and 80 % that and so many bytes."""
_FULL = 80  # % of the free memory that what is predicted may take of one GPU


def started(
    model: GgufModel, gpus: Sequence[Gpu], options: LlamaCppOptions, context: int | None
) -> tuple[Sequence[Gpu], LlamaCppOptions]:
    """Return the GPUs that it takes, and llama-server's options; `context`: num_ctx, if set."""
    embeds = not any(model.keys)
    slots = 1 if embeds else options.parallel or 1
    total = sum(gpu.capacity_bytes for gpu in gpus)
    length = context or next(tokens for least, tokens in _CONTEXTS if total >= least)
    length = min(length, model.positions)
    predicted = _predicted(model, length * slots)
    alone = [gpu for gpu in gpus if predicted <= gpu.capacity_bytes * _FULL // 100]
    used = [max(alone, key=lambda gpu: gpu.capacity_bytes)] if alone else gpus
    set_to = {"ctx_size": length * slots, "parallel": slots, "fit": "on"}
    if "ubatch_size" not in options.model_fields_set:
        free = sum(gpu.capacity_bytes for gpu in used)
        batch = min(2048, length) if embeds else _batch(length * slots, predicted, free)
        set_to |= {"batch_size": batch, "ubatch_size": batch}
    return used, options.model_copy(update=set_to)


def _batch(tokens: int, predicted: int, free: int) -> int:
    for more_than, batch, part, beside in _BATCHES:
        spare = free * _FULL // 100 - predicted
        if tokens > more_than and predicted <= free * part // 100 and beside <= spare:
            return batch
    return 512


def _predicted(model: GgufModel, tokens: int) -> int:
    """Return the bytes that Ollama predicts: the file, and keys and values of every layer."""
    heads = min((keys for keys in model.keys if keys), default=0) // max(1, model.head_keys)
    row = max(1, heads) * (model.hidden // model.heads)
    weights = sum(nbytes(tensor) for tensor in model.tensors)
    return weights + 2 * model.layers * row * tokens * 2  # float16
