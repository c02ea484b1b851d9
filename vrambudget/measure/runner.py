"""Run one job on the GPU that PyTorch sees, real or virtual, and return its allocator's counters.

    python -m vrambudget.measure.runner JOB.json RESULT.json

This file is what a job *means*: the model is built with random weights, and the job's loop
(`vrambudget.measure.loops`), as users write it, runs `steps` times.

A job is a dict: a line of tests/records/reference.jsonl without its `measured`. Out of memory is a
result, `{"oom": message}`. Keys of a result: bytes after the build (`weights`), at the end of each
step's forward and backward, peaks by the end of each step (`peak_allocated_0`…) and of all.

Not modelled: data loaders, several GPUs.
"""

import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vrambudget.auto_classes import DROPOUT_FIELDS, built, class_for, lora_options
from vrambudget.measure.inference import INFERENCE, infer
from vrambudget.measure.loading import loaded
from vrambudget.measure.loops import PREPARING, real_loop
from vrambudget.measure.loops.run import MeasuredRun, OnPhase
from vrambudget.measure.quantised import load_quantised

Job = Mapping[str, Any]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def _train_before() -> None:
    """Train a little, as what ran in the process before: cuBLAS keeps its workspaces."""
    torch.nn.Linear(64, 64, device="cuda")(torch.ones(64, 64, device="cuda")).sum().backward()
    torch.cuda.empty_cache()


def run_job(job: Job, on_phase: OnPhase = lambda _step, _phase: None) -> dict[str, Any]:
    """Build the model, run the loop, return the allocator's counters."""
    if job.get("expandable_segments"):
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")  # noqa: SLF001
    if not job.get("cudnn_attention", True):
        os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"  # read at the first attention
    addresses = job.get("driver_addresses", "rising")  # those of a virtual GPU
    os.environ["VRAMBUDGET_DRIVER_ADDRESSES"] = addresses
    if job.get("warm_process"):
        _train_before()
    model = build_model(job)
    infers = job.get("mode") in INFERENCE
    model = _prepared(model, job) if infers else model  # counters begin with the whole model
    result: dict[str, Any] = {"param_count": sum(p.numel() for p in model.parameters())}
    if not job.get("load"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    result["weights"] = torch.cuda.memory_allocated()
    if infers:
        held: object = infer(model, job)
        result.update(_totals())
        return result
    model = _prepared(model, job)
    by_hand = job.get("loop", "plain") in {"plain", "nanogpt"}  # Trainer compiles by itself
    if job.get("compile") and by_hand:
        model = torch.compile(model, mode=job.get("compile_mode"))
    loop = real_loop(job.get("loop", "plain"))
    run = MeasuredRun(model, job, result, on_phase, lambda: build_model(job))
    held = loop.train(run) if job.get("mode", "train") == "train" else loop.evaluate(run)
    result.update(_totals())
    del held  # a script's variables live as long as it does
    return result


def build_model(job: Job) -> Any:
    """Return the model with random weights, on the GPU, in the dtype of its weights."""
    dtype = _DTYPES.get(job.get("weights") or job.get("precision", "fp32"), torch.float32)
    if _is_nanogpt(job):
        from vrambudget.measure.nanogpt import GPT  # noqa: PLC0415 - only this model needs it

        own = {} if job["model"] == "nanogpt" else dict(job["model"])
        own.pop("model_type", None)
        sizes = {**own, "block_size": job["block"], "dropout": job.get("dropout") or 0.0}
        return GPT(sizes).to("cuda", dtype)
    return _from_transformers(job, dtype)


def _is_nanogpt(job: Job) -> bool:
    return bool(job["model"] == "nanogpt" or job["model"].get("model_type") == "nanogpt")


def _from_transformers(job: Job, dtype: torch.dtype) -> Any:
    import transformers  # noqa: PLC0415 - nanoGPT needs none

    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(**job["model"])
    if job["model"]["model_type"] == "t5":  # its config names neither
        config.decoder_start_token_id, config.pad_token_id = 0, 0
    if job.get("dropout") is not None:
        for name in filter(lambda name: hasattr(config, name), DROPOUT_FIELDS):
            setattr(config, name, job["dropout"])
    if job.get("image_size"):
        config.image_size = job["image_size"]
    task = job.get("task", "causal-lm")
    build = class_for(transformers, task, config).from_config
    if job.get("quant"):
        model = load_quantised(job, config, build)
    elif job.get("load"):
        model = loaded(build, config, job, dtype)
    else:
        with torch.device("cuda"):
            how = job.get("attention", "sdpa")
            model = built(build, config, task=task, attention=how, dtype=dtype)
        model.to("cuda")  # what torch.Tensor(n) made: it knows no device
    if job["model"].get("head_of_its_own"):  # as a checkpoint's is untied that differs
        head = model.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
    model.config.use_cache = bool(job.get("use_cache"))
    return model


def _prepared(model: Any, job: Job) -> Any:
    """Return the model with checkpointing, freezing and adapters, in the usual order."""
    full = job.get("checkpointing", "none") == "full"
    prepares = job.get("loop") in PREPARING
    if full and not job.get("quant") and not prepares:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for name, parameter in model.named_parameters():
        if any(name == part or name.startswith(f"{part}.") for part in job.get("freeze", ())):
            parameter.requires_grad_(False)  # noqa: FBT003 - torch's own way
    if job.get("lora_rank") and not prepares:
        import peft  # noqa: PLC0415 - only LoRA needs it

        options = lora_options(
            job.get("task", "causal-lm"),
            model.config,
            rank=job["lora_rank"],
            targets=job.get("lora_targets", "all-linear"),
            dropout=job.get("lora_dropout") or 0.0,
        )
        model = peft.get_peft_model(model, peft.LoraConfig(**options))
        if full:
            model.enable_input_require_grads()
    return model


def _totals() -> dict[str, Any]:
    stats = torch.cuda.memory_stats()
    return {
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "peak_requested": stats["requested_bytes.all.peak"],
        "device": torch.cuda.get_device_name(0),
        "torch": str(torch.__version__),
    }


def _mark(step: int, phase: str) -> None:
    """Notify the recorder of a rehearsal, if one is running."""
    hook = sys.modules.get("vrambudget_hook")
    if hook is not None:
        hook.mark(f"{step}:{phase}")


def main() -> None:
    """Run the job of one file and write its result to another, in one go."""
    warnings.filterwarnings("ignore")
    sys.tracebacklimit = 0  # of what torch or transformers refuse, the last line
    job_file, result_file = map(Path, sys.argv[1:3])
    job = json.loads(job_file.read_text())
    try:
        result = run_job(job, _mark)
    except torch.OutOfMemoryError as error:
        result = {"oom": str(error), **_totals()}
    draft = result_file.with_suffix(".part")
    draft.write_text(json.dumps(result))
    draft.rename(result_file)


if __name__ == "__main__":
    main()
