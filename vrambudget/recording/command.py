"""What `vrambudget record` records: a configuration, or a module that a factory makes."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vrambudget.config.source import FoundModel
from vrambudget.errors import VramBudgetError
from vrambudget.program.catalog import program_at
from vrambudget.recording.checking import check
from vrambudget.recording.configurations import Recorded, record
from vrambudget.recording.keys import Values


def recorded(
    found: FoundModel | str,
    task: str | list[str] | None,
    sizes: Mapping[str, int],
    *,
    attentions: Sequence[str],
    block: int | None,
    cache: bool,
    join: Path | None = None,
) -> tuple[str, Recorded]:
    """Return a name for the file, and the program, checked at sizes that were no probes.

    `found` is a configuration, or the "module:factory" whose arguments `sizes` are.

    Of several tasks it has all jobs' programs.
    """
    if isinstance(found, str):
        library, _, name = found.partition(":")
        if library in ("timm", "torchvision"):
            if unknown := sizes.keys() - {"pixels", "channels_last"}:
                raise VramBudgetError(
                    f"--size {min(unknown)} should be pixels or channels_last for {library}"
                )
            from vrambudget.recording.classifiers import record_classifier  # noqa: PLC0415 - an extra

            own = name if library == "timm" else f"torchvision-{name}"
            last = bool(sizes.get("channels_last"))
            return name, record_classifier(own, sizes.get("pixels", 224), channels_last=last)
        from vrambudget.recording.modules import record_module  # noqa: PLC0415 - few are modules

        return record_module(found, sizes)
    values: Values = dict(found.values)
    if isinstance(task, list):
        from vrambudget.recording.variants import (  # noqa: PLC0415 - few ask so
            of_versions,
            record_variants,
        )

        if join is not None:
            return found.name, of_versions(program_at(join), values, task, attentions)
        every = record_variants(values, task, attentions)
        every.program.source["sizes"] = _plain(values)
        return found.name, every
    fields: dict[str, Any] = {"attention": "sdpa", "causal_mask": "skipped"}
    fields |= {} if task is None else {"task": task}
    fields |= {} if block is None else {"block": block}
    fields |= {} if cache else {"use_cache": False}
    program = record(values, **fields)
    program.program.source["sizes"] = _plain(values)
    checked = check(program.program, values, **fields)
    return found.name, dataclasses.replace(program, checked=checked)


def _plain(values: Values) -> Values:
    return {k: v for k, v in values.items() if not k.startswith("_")}
