"""Write the records of `measure` and `rehearse`: a line of JSON each, and a line of text."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vrambudget.cli.streams import put
from vrambudget.files import append_line
from vrambudget.units import format_bytes


def append_record(record: Mapping[str, Any], output: Path | None) -> None:
    """Write a record to stdout, or append it to a file. Raises VramBudgetError if that fails."""
    line = json.dumps(record)
    if output is None:
        put(f"{line}\n")
    else:
        append_line(output, line)


def summary(record: Mapping[str, Any]) -> str:
    """Return a record as one line of text."""
    measured, name = record["measured"], record.get("id", "no id")
    if "oom" in measured:
        return f"{name}: out of memory on {record['card']}"
    allocated, reserved = (format_bytes(measured[f"peak_{k}"]) for k in ("allocated", "reserved"))
    return f"{name}: {allocated} allocated, {reserved} reserved on {record['card']}"
