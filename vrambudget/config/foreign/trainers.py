"""Trainers of diffusers' pipelines: what each key of a file, or argument of a script, means.

`tables/trainers` has a table of each (`tables`), which says besides:

    marks, prefix, grouped      keys that a file of it has; what they begin with; whether sections
                                only group them
    files                       keys that name further files
    groups, always              what lies under a key is ignored; what is said of each file
    [silent] key = value        the trainer's own defaults, in its words
    [scripts] NAME = {fields}   what a script is for
    [only] key = [pipelines]    keys, or their beginnings, that count for these alone
    [targets] pipelines = "..." modules that take adapters
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from vrambudget.config.foreign.formats import Format
from vrambudget.config.foreign.meanings import ManyValues, ignored
from vrambudget.config.foreign.tables import TABLES, read_file, table_of


@dataclass(frozen=True, slots=True)
class Trainer:
    """A trainer's format, and its table as it was read."""

    known: Format
    own: Mapping[str, Any]

    def keys_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of a file as the table has them."""
        found = dict[str, list[Any]]()
        for key, value in _leaves(values, ""):
            plain = key.removeprefix(".").removeprefix(self.own.get("prefix", ""))
            if self.own.get("grouped") and plain not in self.known.table:
                plain = plain.rpartition(".")[2]
            found.setdefault(plain, []).append(value)
        return {key: _one(stated) for key, stated in found.items()}


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield keys and values; objects in a list have the list's key."""
    for key, value in values.items():
        listed = isinstance(value, list) and any(isinstance(each, Mapping) for each in value)
        for each in value if listed else [value]:
            if isinstance(each, Mapping) and each:
                yield from _leaves(each, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", each


def _one(stated: list[Any]) -> Any:
    """Return what several data sets say as one value: of numbers the largest."""
    numbers = all(isinstance(each, int | float) for each in stated)
    return stated[0] if len(stated) == 1 else max(stated) if numbers else ManyValues(stated)


@cache
def trainers() -> tuple[Trainer, ...]:
    """Return all trainers."""
    return tuple(
        _trainer(read_file(f"trainers/{path.stem}"))
        for path in sorted((TABLES / "trainers").iterdir())
    )


def _trainer(own: Mapping[str, Any]) -> Trainer:
    table = {**table_of(own), **ignored(" ".join(own.get("files", ())))}
    known = Format(
        own["name"],
        frozenset(own.get("marks", ())),
        table,
        ignored_groups=tuple(own.get("groups", ())),
        always=tuple(own.get("always", ())),
    )
    return Trainer(known, own)
