"""Records on their way out of `measure` and `rehearse`: a line of JSON each, and a word on each."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vrambudget.errors import VramBudgetError
from vrambudget.units import format_bytes


def append_record(record: Mapping[str, Any], output: Path | None) -> None:
    """Write a record to stdout, or at the end of a file. Raises VramBudgetError if it cannot be."""
    line = json.dumps(record) + "\n"
    if output is None:
        sys.stdout.write(line)
        return
    try:
        with output.open("a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        raise VramBudgetError(
            f"cannot write the record: {error.strerror}", where=str(output)
        ) from error


def told(record: Mapping[str, Any]) -> str:
    """Return a record in one line."""
    measured = record["measured"]
    if "oom" in measured:
        return f"{record['id']}: out of memory on {record['card']}"
    allocated, reserved = (format_bytes(measured[f"peak_{k}"]) for k in ("allocated", "reserved"))
    return f"{record['id']}: {allocated} allocated, {reserved} reserved on {record['card']}"
