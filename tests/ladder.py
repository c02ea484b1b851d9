"""The tables of docs/anatomy.md: the ladder of a published page, then and now.

`PYTHONPATH=. python tests/ladder.py` rewrites them, where they change on purpose.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vrambudget import Budget, estimate
from vrambudget.config.record import gpu_of_record, job_of_record, read_records
from vrambudget.validate import validate

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "anatomy.md"
RECORDS = read_records(ROOT / "tests" / "records" / "published" / "anatomy.jsonl")
TABLE = re.compile(r"(<!-- table: (?P<name>\w+) -->\n\n)(?P<shown>.*?)(\n\n)", re.DOTALL)
_MIB = 2**20
_PARTS = ("weights", "autocast copies", "gradients", "optimizer states", "activations")


def told(record: dict[str, Any]) -> str:
    """Return a step of the ladder in words."""
    words = [f"batch {record['batch']}"]
    words += ["accumulated over 4"] if record.get("grad_accum") else []
    words += ["checkpointed"] if record.get("checkpointing") else []
    words += ["fp16"] if record["precision"] == "amp-fp16" else []
    words += [{"adamw": "AdamW", "adafactor": "Adafactor"}.get(record["optimizer"], "8-bit Adam")]
    words += ["accelerate"] if "accelerate" in record["id"] else []
    return ", ".join(words)


def then(record: dict[str, Any]) -> Budget:
    """Return the estimate by the rules of torch 1.10."""
    return _estimate(record, {})


def now(record: dict[str, Any]) -> Budget:
    """Return the estimate of the same job today, in Trainer where that is counted."""
    own: dict[str, Any] = {"attention": "sdpa", "zero_grad": "none", "optimizer_impl": None}
    if record["optimizer"] == "adamw":
        own |= {"loop": "trainer", "forward_returns": "outputs", "optimizer_impl": "fused"}
    return _estimate(record, {**own, "torch": "2.11", "transformers": "5.17"})


def _estimate(record: dict[str, Any], changes: dict[str, Any]) -> Budget:
    job = job_of_record(record).model_dump(exclude_unset=True)
    return estimate(record["model"], gpu=gpu_of_record(record).key, **{**job, **changes})


def device_mib(budget: Budget) -> float:
    """Return what nvidia-smi would show when the job is over, in MiB."""
    assert budget.device is not None
    return (budget.peak.reserved_bytes + budget.device.context_bytes) / _MIB


def steps() -> Iterator[dict[str, Any]]:
    """Yield the records of trainings."""
    yield from (record for record in RECORDS if "device_peak" in record["measured"])


def ladder() -> str:
    """Return what was printed, and what is estimated by the rules of then and of now."""
    rows = ["| job | printed | then | error | now |", "|---|---|---|---|---|"]
    for record in steps():
        (check,) = validate([record])
        error = check.error("device")
        assert error is not None
        printed, predicted = check.measured["device"] / _MIB, check.predicted["device"] / _MIB
        cells = f"{printed:,.0f} | {predicted:,.0f} | {round(100 * error, 1) + 0.0:+.1f} %"
        rows.append(f"| {told(record)} | {cells} | {device_mib(now(record)):,.0f} |")
    return "\n".join(rows)


def ledger() -> str:
    """Return bytes per parameter at the peak, by purpose, then and now."""
    rows = [f"| job | | {' | '.join(_PARTS)} |", f"|---|---|{'---|' * len(_PARTS)}"]
    for record in [step for step in steps() if "accelerate" not in step["id"]]:
        for when, budget in (("then", then(record)), ("now", now(record))):
            each = [budget.breakdown[part] / budget.parameters.total for part in _PARTS]
            rows.append(f"| {told(record)} | {when} | {' | '.join(f'{n:.2f}' for n in each)} |")
    return "\n".join(rows)


TABLES = {"ladder": ladder, "ledger": ledger}

if __name__ == "__main__":
    PAGE.write_text(
        TABLE.sub(lambda m: m[1] + TABLES[m["name"]]() + m[4], PAGE.read_text(encoding="utf-8")),
        encoding="utf-8",
    )
