"""What `vrambudget record` records: a configuration, or a module that a factory makes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from vrambudget.config.source import find_model
from vrambudget.errors import VramBudgetError
from vrambudget.recording.checking import check
from vrambudget.recording.configurations import Recorded, record
from vrambudget.recording.keys import Values


def recorded(
    model: str,
    task: str | list[str] | None,
    sizes: Sequence[str],
    *,
    block: int | None,
    cache: bool,
) -> tuple[str, Recorded]:
    """Return a name for the file, and the program, checked at sizes that were no probes.

    Of several tasks it has all jobs' programs.
    """
    if ":" in model and "/" not in model:
        from vrambudget.recording.modules import record_module  # noqa: PLC0415 - few are modules

        return record_module(model, dict(map(_size, sizes)))
    found = find_model(model)
    if not isinstance(found.values.get("model_type"), str):
        raise VramBudgetError("model_type is missing", where=found.where)
    values: Values = dict(found.values)
    if isinstance(task, list):
        from vrambudget.recording.variants import record_variants  # noqa: PLC0415 - few ask so

        every = record_variants(values, task)
        every.program.source["sizes"] = _plain(values)
        return found.name, every
    fields: dict[str, Any] = {} if task is None else {"task": task}
    fields |= {} if block is None else {"block": block}
    fields |= {} if cache else {"use_cache": False}
    program = record(values, **fields)
    program.program.source["sizes"] = _plain(values)
    checked = check(program.program, values, **fields)
    return found.name, dataclasses.replace(program, checked=checked)


def _plain(values: Values) -> Values:
    return {k: v for k, v in values.items() if not k.startswith("_")}


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not number.isdigit() or not name.isidentifier():
        raise VramBudgetError(f"--size {text!r} should be NAME=N, such as height=512")
    return name, int(number)
