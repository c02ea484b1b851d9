"""Records that depend on a library, rehearsed once more under another version of it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vrambudget.config.record import read_records
from vrambudget.validate import COUNTERS

from . import ranked

RECORDS = Path(__file__).parents[1] / "records"

_DEPEND = {
    "torch": ("reference.jsonl", "ranks.jsonl"),
    "transformers": ("reference.jsonl", "decoders.jsonl", "encoders.jsonl", "generation.jsonl"),
    "peft": ("lora.jsonl",),
    "accelerate": ("loops.jsonl",),
    "trl": ("loops.jsonl",),
    "bitsandbytes": ("methods.jsonl",),
    "lightning": ("loops.jsonl",),
}
_LOOPS = {
    "accelerate": {"accelerate", "trainer"},
    "trl": {"sft", "dpo"},
    "lightning": {"lightning"},
}
_MEASURED = {counter: f"peak_{counter}" for counter in COUNTERS}


def depending(package: str) -> list[dict[str, Any]]:
    """Return the virtual records of the baseline that depend on a library."""
    found = [r for name in _DEPEND.get(package, ()) for r in read_records(RECORDS / name)]
    loops = _LOOPS.get(package)
    found = [r for r in found if r.get("source") == "virtual"]
    found = [r for r in found if not r.get("parallel") or ranked.runs(r)]
    return [r for r in found if loops is None or r.get("loop") in loops]


def rehearse_again(package: str, python: str, baseline: str, most: int) -> int:
    """Rehearse records' jobs under two environments and print what differs; 1 if anything does.

    Of the records that depend on the library, `most` are taken, spread over all of them.
    """
    records = depending(package)
    if not records:
        print(f"{package}: no record depends on it")
        return 0
    chosen = records[:: max(1, -(-len(records) // most))]
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "jobs.jsonl", Path(folder) / "made.jsonl"
        differ = 0
        for record in chosen:
            then, now = (_rehearsed(record, each, given, made) for each in (baseline, python))
            differ += _compare(record["id"], then, now)
    print(f"{package}: of {len(chosen)} records of {len(records)}, {differ} differ")
    return int(differ > 0)


def _rehearsed(
    record: Mapping[str, Any], python: str, given: Path, made: Path
) -> Mapping[str, Any] | str:
    """Return what a job counts now, or why it did not run."""
    given.write_text(json.dumps(record) + "\n")
    made.unlink(missing_ok=True)
    command = [sys.executable, "-m", "vrambudget", "rehearse", "--any-torch"]
    command += ["--gpu", str(record["card"])]
    if layout := record.get("parallel"):
        made = made.with_suffix(".json")
        made.unlink(missing_ok=True)
        command += ["--ranks", str(layout["world"]), "--rank", str(layout.get("rank", 0))]
        command += ["-o", str(made), "--", python, ranked.__file__, str(given)]
    else:
        command += ["-o", str(made), "--jobs", str(given)]
    ended = subprocess.run(
        command,
        env={**os.environ, "VRAMBUDGET_PYTHON": python, "PYTHONPATH": str(RECORDS.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    if not made.exists():
        return (ended.stderr.strip() or "no record was made").splitlines()[-1]
    if layout:
        whole = json.loads(made.read_text())
        if whole["error"]:
            return str(whole["error"])
        return {key: whole[f"{key}_bytes"] for key in _MEASURED.values() if f"{key}_bytes" in whole}
    (found,) = read_records(made)
    measured: Mapping[str, Any] = found["measured"]
    return measured


def _compare(name: str, then: Mapping[str, Any] | str, now: Mapping[str, Any] | str) -> bool:
    """Print a job that counts otherwise now, with the command that shows the first event."""
    if isinstance(then, str) or isinstance(now, str):
        print(f"{name}: not rehearsed: {then if isinstance(then, str) else now}")
        return True
    off = [
        f"{counter} {then[key]:,} then, {now[key]:,} now ({now[key] / then[key] - 1:+.4%})"
        for counter, key in _MEASURED.items()
        if key in then and key in now and then[key] != now[key]
    ]
    if off:
        print(f"{name}: {'; '.join(off)}")
        print("    the first event: vrambudget compare MODEL --events, with the job's options")
    return bool(off)
