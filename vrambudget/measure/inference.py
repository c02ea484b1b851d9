"""A job of inference in torch: `generate`, or a model that is called.

`vrambudget.inference` models it.

Not modelled: pipelines, end tokens: all rows run to their full length.
"""

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

import torch

from vrambudget.measure.loops.run import make_batch

INFERENCE = ("generate", "forward")
_AUTOCAST = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}
_CACHES = ("static", "offloaded", "quantized")
_IS_UNFINISHED = "_beam_search_has_unfinished_sequences"


def infer(model: Any, job: Mapping[str, Any]) -> object:
    """Run the script of the job's mode; return what its variables hold."""
    model.eval()
    dtype = _AUTOCAST.get(job.get("precision", "fp32"))
    region = torch.autocast("cuda", dtype=dtype) if dtype else contextlib.nullcontext()
    grad = contextlib.nullcontext() if job.get("with_grad") else torch.no_grad()
    with grad, region:
        return _generate(model, job) if job["mode"] == "generate" else _forward(model, job)


def _generate(model: Any, job: Mapping[str, Any]) -> object:
    model.generation_config.eos_token_id = None
    inputs = _inputs(job, job["prompt"], with_mask=True)
    options = options_of(job)
    if "vrambudget_hook" in sys.modules:
        if job.get("cache") == "quantized":
            _stub_quanto()
        if job.get("num_beams", 1) > 1:
            _go_on_with_beams(options["max_new_tokens"])
    for _ in range(job.get("calls", 1)):
        out = model.generate(**inputs, **options)
    return out


class _Unpacking:
    """quanto's extension on a virtual GPU: it allocates what `unpack.cu` does, without nvcc."""

    @staticmethod
    def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
        """Return room for the unpacked values."""
        return packed.new_empty((packed.shape[0] * (8 // bits), *packed.shape[1:]))


def _stub_quanto() -> None:
    """Keep quanto from compiling kernels that would not run."""
    from optimum.quanto.library.extensions import get_extension  # noqa: PLC0415

    get_extension("quanto_cuda")._lib = _Unpacking()  # noqa: SLF001


def _go_on_with_beams(tokens: int) -> None:
    """Answer as a GPU does where no token ends a beam: it goes on to the last one.

    On a virtual GPU scores read as zeros, by which no further token would improve them.
    """
    from transformers.generation.utils import GenerationMixin  # noqa: PLC0415

    steps = iter(range(tokens - 1, -1, -1))
    ask = vars(GenerationMixin)[_IS_UNFINISHED].__func__

    def has_unfinished_sequences(*args: Any) -> bool:
        bool(ask(*args))
        return next(steps) > 0

    setattr(GenerationMixin, _IS_UNFINISHED, staticmethod(has_unfinished_sequences))


def options_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `generate`."""
    cache, sample = job.get("cache", "dynamic"), bool(job.get("sample"))
    options: dict[str, Any] = {
        "max_new_tokens": job.get("new", 128),
        "do_sample": sample,
        "num_beams": job.get("num_beams", 1),
        "num_return_sequences": job.get("num_return", 1),
        "use_cache": cache != "none",
        "disable_compile": True,
        "pad_token_id": 0,
        "eos_token_id": None,
    }
    if sample:
        options |= {name: job[name] for name in ("top_k", "top_p", "temperature") if name in job}
    if cache in _CACHES:
        options["cache_implementation"] = cache
    if cache == "quantized":
        options["cache_config"] = {"backend": "quanto", "nbits": job.get("cache_bits", 4)}
    if job.get("prefill_chunk"):
        options["prefill_chunk_size"] = job["prefill_chunk"]
    for name in ("scores", "logits"):
        if job.get(f"return_{name}"):
            options |= {f"output_{name}": True, "return_dict_in_generate": True}
    return options


def _forward(model: Any, job: Mapping[str, Any]) -> object:
    outputs: Any = None
    hidden_states: Any = None
    options = {"logits_to_keep": job["logits_to_keep"]} if job.get("logits_to_keep") else {}
    for _ in range(job.get("steps", 3)):
        inputs = _forward_inputs(model, job)
        outputs = model(**inputs, **options)
        if job.get("pool", "none") == "mean":
            hidden_states = outputs.last_hidden_state
            mask = inputs["attention_mask"].unsqueeze(-1).expand(hidden_states.size()).float()
            pooled = torch.sum(hidden_states * mask, 1) / torch.clamp(mask.sum(1), min=1e-9)
            pooled = torch.nn.functional.normalize(pooled, p=2, dim=1).cpu()
        elif job.get("pool", "none") != "none":
            token = 0 if job["pool"] == "cls" else -1
            pooled = outputs.last_hidden_state[:, token]
            pooled = torch.nn.functional.normalize(pooled, p=2, dim=1).cpu()
        if not job.get("keep_outputs", True):
            outputs = None
    return locals()


def _forward_inputs(model: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model is called with, without labels: its pictures or sound, or tokens."""
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        return {name: x for name, x in make_batch(job, model).items() if name != "labels"}
    return _inputs(job, job["block"], with_mask=job.get("attention_mask", "none") != "none")


def _inputs(job: Mapping[str, Any], length: int, *, with_mask: bool) -> dict[str, Any]:
    """Return tokens and a mask, made on the CPU, on the device."""
    shape = job["batch"], length
    inputs = {"input_ids": torch.ones(shape, dtype=torch.long).cuda()}
    if with_mask:
        mask = torch.ones(shape, dtype=torch.long)
        if job.get("padding") == "left":
            mask[:, 0] = 0
        elif job.get("attention_mask") == "padding":
            mask[:, -1] = 0
        inputs["attention_mask"] = mask.cuda()
    return inputs
