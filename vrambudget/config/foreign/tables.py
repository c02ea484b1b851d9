"""A tool's keys as a file in `tables`: data, each as one of `meanings`.

model = "key"                    the key that names the model
ignored, flags, ranks            keys apart by spaces: Ignored, those without a value, OnlyRanks
[same] key = "field"             or what Same takes
[width_height], [largest]        key = "field": Sizes, pairs or not
[switches] key = {fields}        or {on, off, assumed, said}
[choices.KEY] what = "...", value = {fields}; said = "..." is noted
[uncounted], [saves]             key = "what it is", or what Uncounted takes
[as] key = "another"             as another key of the tables that this one goes on from
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vrambudget.config.foreign.meanings import (
    Meaning,
    Model,
    OneOf,
    Same,
    Sizes,
    Switch,
    Table,
    Uncounted,
    ignored,
    of_ranks,
)

TABLES = Path(__file__).parent / "tables"
_SWITCH = {"on", "off", "assumed", "said"}


def read_table(name: str, base: Table | None = None) -> dict[str, Meaning]:
    """Return what each key of a tool means, with those of the table that it goes on from."""
    return table_of(tomllib.loads((TABLES / f"{name}.toml").read_bytes().decode()), base or {})


def table_of(own: Mapping[str, Any], base: Table) -> dict[str, Meaning]:
    """Return the table that a file's keys are."""

    def of(group: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = own.get(group, {})
        return found

    return {
        **base,
        **({own["model"]: Model()} if "model" in own else {}),
        **{key: base[another] for key, another in of("as").items()},
        **{key: _same(field) for key, field in of("same").items()},
        **{key: Sizes(field, pairs=True) for key, field in of("width_height").items()},
        **{key: Sizes(field, pairs=False) for key, field in of("largest").items()},
        **{key: _choice(values) for key, values in of("choices").items()},
        **{key: _switch(fields) for key, fields in of("switches").items()},
        **{key: _uncounted(what) for key, what in of("uncounted").items()},
        **{key: _uncounted(what, saves=True) for key, what in of("saves").items()},
        **ignored(own.get("ignored", "")),
        **ignored(own.get("flags", ""), flag=True),
        **of_ranks(own.get("ranks", "")),
    }


def _same(of: str | Mapping[str, Any]) -> Same:
    return Same(of) if isinstance(of, str) else Same(**{**of, "off": tuple(of["off"])})


def _choice(of: Mapping[str, Any]) -> OneOf:
    values = {key.lower(): dict(fields) for key, fields in of.items() if key != "what"}
    said = {key: fields.pop("said") for key, fields in values.items() if "said" in fields}
    return OneOf(of["what"], values, said)


def _switch(of: Mapping[str, Any]) -> Switch:
    if of.keys() - _SWITCH:
        return Switch(of)
    return Switch(of.get("on", {}), of.get("assumed", {}), of.get("off", {}), of.get("said"))


def _uncounted(of: str | Mapping[str, Any], *, saves: bool = False) -> Uncounted:
    given = {"what": of} if isinstance(of, str) else of
    return Uncounted(**{**given, "harmless": tuple(given.get("harmless", ())), "saves": saves})
