"""Measure a job in a process of its own, and write the record that predictions are held against.

A record is a line of JSON: the job (`record_of`), `card`, `source` ("real"; "virtual" where
`vrambudget rehearse` stands for the GPU), `versions`, `machine` (what the driver says of the GPU,
and what is taken beside PyTorch's allocator) and `measured`, the allocator's own numbers. Out of
memory is a result.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from vrambudget.config.fields.training import LoopName
from vrambudget.config.job import Job
from vrambudget.config.record import FOUND, check_keys, job_of_record
from vrambudget.config.source import find_model
from vrambudget.errors import NotModelledError, VramBudgetError, did_you_mean
from vrambudget.files import RESULT_BYTES, read_file
from vrambudget.scenario import Scenario, config_of, with_head

DECIDED_BY_THE_RUN = frozenset({"torch", "transformers", "causal_mask", "routing"})
"""Fields of a job that no runner takes: versions are as installed, values decide the rest."""

# WSL has the driver of Windows.
_LINUX = sys.platform == "linux" and "microsoft" not in platform.release()

_NANOGPT = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_embd": "hidden_size",
    "vocab_size": "vocab_size",
    "bias": "bias",
}

_LOOK = """
import ctypes, importlib.metadata as m, json, torch
if not torch.cuda.is_available(): raise SystemExit("PyTorch sees no GPU")
torch.empty(1, device="cuda")
free, total = torch.cuda.mem_get_info()
gpu = torch.cuda.get_device_properties(0)
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
def driver():
    text = ctypes.create_string_buffer(96)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        found = nvml.nvmlInit_v2() == 0 and nvml.nvmlSystemGetDriverVersion(text, 96) == 0
    except (OSError, AttributeError): return None
    return text.value.decode() if found else None
print(json.dumps({"card": torch.cuda.get_device_name(0), "capacity_bytes": total,
  "outside_bytes": total - free - torch.cuda.memory_reserved(),
  "compute_capability": [gpu.major, gpu.minor], "multiprocessors": gpu.multi_processor_count,
  "versions": {n: v for n in ("transformers", "peft", "accelerate", "bitsandbytes")
               if (v := version(n))}
  | {"torch": torch.__version__, "cuda": torch.version.cuda}
  | ({"driver": v} if (v := driver()) else {})}))
"""


def record_of(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as the job of a record: what `measure.runner` runs."""
    model: dict[str, Any] = {"model_type": scenario.config.model_type}
    if scenario.config.model_type == "nanogpt":
        model |= {name: getattr(scenario.config, field) for name, field in _NANOGPT.items()}
    else:
        model |= scenario.values
    return record_of_job(scenario.model, model, scenario.job)


def record_of_job(name: str, model: dict[str, Any], job: Job) -> dict[str, Any]:
    """Return a model's job as that of a record; `model` has the configuration's keys."""
    dump = job.model_dump(mode="json", exclude=set(DECIDED_BY_THE_RUN))
    kept = {key: value for key, value in dump.items() if value not in (None, [])}
    if job.mode == "generate":  # its mask follows from the side that prompts are padded on
        kept.pop("attention_mask", None)
    if "target_len" in kept:
        kept["target"] = kept.pop("target_len")
    if kept.pop("experts") == "eager":  # transformers reads it from the configuration
        model = {**model, "experts_implementation": "eager"}
    return {"id": f"{name}-{job.precision}-b{job.batch}-t{job.block}", "model": model, **kept}


def measure_job(
    job: Mapping[str, Any],
    *,
    machine: Mapping[str, Any] | None = None,
    python: str = sys.executable,
) -> dict[str, Any]:
    """Run a record's job on the GPU and return the whole record. Raises VramBudgetError.

    `machine`: what `look` said of it, where that is known.
    """
    machine = machine or look(python)
    with tempfile.TemporaryDirectory(prefix="vrambudget-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(runnable(job)))
        files = [str(folder / "job.json"), str(folder / "result.json")]
        ended = _run([python, "-m", "vrambudget.measure.runner", *files])
        if ended.returncode or not (folder / "result.json").exists():
            raise VramBudgetError(
                f"the job failed: {_last_line(ended.stderr)}", where=str(job.get("id", "job"))
            )
        measured = json.loads(read_file(folder / "result.json", "result", RESULT_BYTES))
    return as_record(job, measured=measured, **found_on(machine))


def found_on(machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record says of the machine that `look` saw."""
    apart = ("card", "versions")
    is_virtual = "VRAMBUDGET_REHEARSAL" in os.environ
    return {
        **({"driver_addresses": "linux"} if _LINUX and not is_virtual else {}),
        "card": machine["card"],
        "source": "virtual" if is_virtual else "real",
        "versions": machine["versions"],
        "machine": {key: value for key, value in machine.items() if key not in apart},
    }


def measure_context(*, python: str = sys.executable) -> dict[str, Any]:
    """Return what the driver takes beside PyTorch's allocator, step by step, as a record.

    Raises VramBudgetError.
    """
    machine = look(python)
    with tempfile.TemporaryDirectory(prefix="vrambudget-") as name:
        result = Path(name) / "result.json"
        ended = _run([python, "-m", "vrambudget.measure.context", str(result)])
        if ended.returncode:
            raise VramBudgetError(f"the context was not measured: {_last_line(ended.stderr)}")
        context = json.loads(read_file(result, "result", RESULT_BYTES))
        return {"context": context, **found_on(machine)}


def runnable(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job as `measure.runner` reads it: a model that is named comes as its configuration.

    Raises VramBudgetError for a name of a model or of a loop, or a key, that is not known, for a
    value that makes no job, and for one of several ranks. A class without rules here may run.
    """
    check_keys(job)
    if job.get("parallel"):
        raise VramBudgetError(
            "a job of several ranks is not run from its options",
            hint="`vrambudget rehearse --gpu GPU --ranks N -- python train.py` runs one rank",
        )
    loop, loops = job.get("loop", "plain"), get_args(LoopName)
    if loop not in loops:
        known = f"known are {', '.join(loops)}"
        raise VramBudgetError(
            f"loop {loop!r} is not known", hint=did_you_mean(str(loop), loops) or known
        )
    found = find_model(job.get("model", ""))
    with suppress(NotModelledError):
        asked = job_of_record(job)
        resolved = asked.resolve(with_head(config_of(found), found, asked.task).for_job(asked))
        if resolved.block != asked.block and asked.mode != "generate":
            raise VramBudgetError("the job has no block", hint="its sequences' length in tokens")
    if job["model"] == "nanogpt":  # the runner knows that one by name
        return dict(job)
    return {**job, "model": dict(found.values)}


def as_record(job: Mapping[str, Any], **found: Any) -> dict[str, Any]:
    """Return the record of a job that was run; what an earlier run of it found is left out."""
    kept = {key: value for key, value in job.items() if key not in FOUND}
    return {**kept, **found}


def look(python: str = sys.executable) -> dict[str, Any]:
    """Ask PyTorch, in a process of its own, for its GPU and versions."""
    ended = _run([python, "-c", _LOOK])
    if ended.returncode:
        raise VramBudgetError(
            f"cannot measure: {_last_line(ended.stderr)}",
            hint="`vrambudget rehearse` needs no GPU; an estimate needs neither GPU nor PyTorch",
        )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
