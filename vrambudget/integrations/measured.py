"""Read PyTorch's own counters in a running job, and write the record that `validate` reads."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vrambudget.budget import Budget
from vrambudget.files import append_line


def reset_peaks() -> None:
    """Reset the peaks, if there is a GPU."""
    if (torch := _torch_on_gpu()) is not None:
        torch.cuda.reset_peak_memory_stats()


def measure_peaks() -> dict[str, Any] | None:
    """Return the peaks since `reset_peaks`; None without a GPU."""
    torch = _torch_on_gpu()
    if torch is None:
        return None
    return {
        "peak_requested": torch.cuda.memory_stats()["requested_bytes.all.peak"],
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
    }


def append_record(
    path: Path, budget: Budget, config: Mapping[str, Any], measured: Mapping[str, Any]
) -> None:
    """Append the job and what was measured as one line of JSON."""
    whole = budget.job["loop"] != "plain"  # a library's defaults would fill what is left out
    job = {name: value for name, value in budget.job.items() if whole or value is not None}
    versions = {name: job.pop(name) for name in ("torch", "transformers") if name in job}
    record = {
        "id": f"{budget.model}-{job['precision']}-b{job['batch']}-t{job['block']}",
        "model": {key: value for key, value in config.items() if _is_plain(value)},
        **job,
        "card": measured["device"],
        "source": "virtual" if "vrambudget_hook" in sys.modules else "real",  # in a rehearsal
        "versions": versions,
        "measured": dict(measured),
    }
    append_line(path, json.dumps(record))


def _torch_on_gpu() -> Any:
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None


def _is_plain(value: object) -> bool:
    """Return whether JSON can hold a configuration's value unchanged."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
