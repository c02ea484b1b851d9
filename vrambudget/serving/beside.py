"""What llama-server loads beside a model: a draft model, a projector of images, an adapter.

    draft      a model of its own, with a cache of as many tokens in float16, and its own buffers
    projector  its tensors, on the first GPU
    adapter    a and b of each weight, where the weight is; the graph multiplies with both

Source: llama.cpp 0c1e570 of October 2026: src/llama-adapter.cpp, tools/mtmd/clip.cpp
(load_tensors), common/speculative.cpp (common_base_params_to_speculative).
Not modelled: a projector's compute buffer, which follows from the size of an image.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vrambudget.config.gpus import Gpu
from vrambudget.errors import VramBudgetError
from vrambudget.serving.gguf import GgufTensor, read_gguf
from vrambudget.serving.gguf_model import GgufModel
from vrambudget.serving.llama_cpp import Beside, Held, LlamaCppServing, serve
from vrambudget.serving.llama_cpp_place import in_a_buffer, nbytes
from vrambudget.serving.options import LlamaCppOptions


def with_adapter(model: GgufModel, path: Path) -> GgufModel:
    """Return a model with an adapter's tensors among its own. Raises VramBudgetError."""
    found = _of_type(path, "general.type", "adapter")
    shapes = {tensor.name: tensor.shape for tensor in model.tensors}
    pairs = [tensor for tensor in found if not tensor.name.endswith("_norm.weight")]
    for tensor in pairs:
        name, _, part = tensor.name.rpartition(".lora_")
        side = 0 if part == "a" else 1  # a [in, r], b [r, out]
        if name not in shapes or tensor.shape[side : side + 1] != shapes[name][side : side + 1]:
            raise VramBudgetError(
                f"{tensor.name!r} adapts no tensor of {model.name}: it is another model's adapter",
                where=str(path),
            )
    return replace(model, tensors=(*model.tensors, *pairs))


def projector(path: Path) -> tuple[GgufTensor, ...]:
    """Return a projector's tensors. Raises VramBudgetError for another file."""
    return _of_type(path, "general.architecture", "clip")


def _of_type(path: Path, key: str, expected: str) -> tuple[GgufTensor, ...]:
    header = read_gguf(path)
    if (said := header.of(key, str, "text")) != expected:
        raise VramBudgetError(f"{key} is {said!r}; expected {expected!r}", where=str(path))
    return header.tensors


def of_projector(tensors: tuple[GgufTensor, ...], found: LlamaCppServing) -> Beside:
    """Return what a projector holds on the devices of a model."""
    size = sum(in_a_buffer(nbytes(each), each.kind, each.shape[0]) for each in tensors)
    devices = enumerate((*found.gpus, found.host))
    held = [Held(each.name, size if number == 0 else 0, 0, 0, 0) for number, each in devices]
    return Beside("mmproj", tuple(held[:-1]), held[-1])


def of_draft(
    draft: GgufModel, gpus: Sequence[Gpu], found: LlamaCppServing, options: LlamaCppOptions
) -> Beside:
    """Return what a draft model holds; several GPUs share its layers by what is free then."""
    own = {"ctx_size": found.cells * found.streams, "n_gpu_layers": None, "override_tensor": ""}
    own |= {"cpu_moe": False, "n_cpu_moe": 0, "cache_type_k": "f16", "cache_type_v": "f16"}
    own |= {"model_draft": None, "spec_type": "", "n_cpu_ffn": 0}
    left = [
        replace(gpu, capacity_bytes=max(gpu.capacity_bytes - held.bytes, 1 + gpu.context_range[0]))
        for gpu, held in zip(gpus, found.gpus, strict=True)
    ]
    made = serve(draft, left, options.model_copy(update=own))
    return Beside("draft", made.gpus, made.host)
