"""Rehearse what `plan` recommends: `python tests/benchmarks/rehearse_plans.py [--all] [PAIR ...]`.

For each pair of a model and a GPU: the recipe runs on the virtual GPU, and its next larger batch
does not. Every line of tests/records/plans/one_gpu.jsonl is one recipe; a pair that is there is not
rehearsed again. VRAMBUDGET_PYTHON names the Python with the CUDA build, which needs bitsandbytes
for recipes with 4-bit weights.
"""

import json
import sys
from pathlib import Path

import vrambudget
from vrambudget.config.gpus import find_gpu
from vrambudget.errors import VramBudgetError
from vrambudget.rehearse.events import rehearse_job
from vrambudget.rehearse.models import job_of

PEAKS = ("oom", "peak_requested", "peak_allocated", "peak_reserved")
KEPT = Path(__file__).parents[1] / "records" / "plans" / "one_gpu.jsonl"
VERSIONS = {"torch": "2.11", "transformers": "5.17"}
PAIRS = [
    ("qwen2.5-0.5b", "t4", 2048),
    ("gpt2", "rtx-3060", 1024),
    ("qwen3-0.6b", "rtx-4060", 2048),
    ("tinyllama-1.1b", "rtx-3090", 2048),
    ("llama-3.2-1b", "t4", 1024),
    ("qwen2.5-1.5b", "rtx-4070", 2048),
    ("smollm2-1.7b", "rtx-4080", 2048),
    ("gemma-2b", "l4", 2048),
    ("llama-3.2-3b", "rtx-4090", 2048),
    ("qwen2.5-3b", "a10g", 4096),
    ("phi-3-mini-4k", "rtx-2080-ti", 1024),
    ("llama-2-7b", "t4", 512),
    ("mistral-7b-v0.3", "rtx-3090", 4096),
    ("qwen2.5-7b", "a100-40gb", 4096),
    ("llama-3.1-8b", "rtx-4090", 2048),
    ("qwen3-8b", "l40s", 4096),
    ("llama-2-13b", "a6000", 2048),
    ("qwen2.5-14b", "a100-80gb", 4096),
    ("qwen2.5-32b", "rtx-a6000", 2048),
    ("llama-3.1-70b", "h100-80gb", 4096),
    ("pythia-410m", "rtx-2060", 1024),
    ("opt-1.3b", "rtx-4070-laptop", 1024),
    ("smollm2-360m", "rtx-3060-laptop", 1024),
]


def rehearsed(model, gpu, fields):
    """Return what PyTorch said of a job, with its versions."""
    job = job_of(model, {**fields, **VERSIONS})
    found = rehearse_job(job, gpu=find_gpu(gpu), events=False)
    return {key: found.measured[key] for key in PEAKS if key in found.measured}, found.versions


def record_of(model, gpu, block, choice):
    """Return a recipe's record: it, and its next larger batch, as the virtual GPU ran them."""
    fields = {name: value for name, value in choice.fields.items() if name not in VERSIONS}
    batch = fields.setdefault("batch", 1)
    ran, versions = rehearsed(model, gpu, fields)
    larger, _ = rehearsed(model, gpu, {**fields, "batch": batch + 1})
    return {
        "model": model,
        "gpu": gpu,
        "block": block,
        "layout": choice.layout,
        "fields": fields,
        "ran": ran,
        "next": larger,
        "holds": "oom" not in ran and "oom" in larger,
        "source": "virtual",
        "versions": versions,
    }


def main(words):
    KEPT.parent.mkdir(exist_ok=True)
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    known = {(r["model"], r["gpu"], r["layout"]) for r in map(json.loads, lines)}
    asked = [word for word in words if not word.startswith("--")]
    for model, gpu, block in PAIRS:
        if asked and model not in asked:
            continue
        found = vrambudget.plan(model, gpu=gpu, block=block, **VERSIONS)
        choices = found.choices if found.gpus == 1 else ()
        for choice in choices if "--all" in words else choices[:1]:
            if (model, gpu, choice.layout) in known:
                continue
            try:
                record = record_of(model, gpu, block, choice)
            except VramBudgetError as error:
                print(f"{model} on {gpu}: {choice.layout}: {error}")
                continue
            with KEPT.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            print(f"{model} on {gpu}: {choice.layout}: {'holds' if record['holds'] else 'NO'}")


if __name__ == "__main__":
    main(sys.argv[1:])
