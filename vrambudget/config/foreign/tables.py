"""A tool's keys as a file in `tables`: data, each as one of `meanings`.

model = "key"                    the key that names the model
ignored, flags, ranks            keys apart by spaces: Ignored, those without a value, OnlyRanks
[same] key = "field"             or what Same takes
[width_height], [largest]        key = "field": SizesInText, pairs or not
[switches] key = {fields}        or {on, off, assumed, said}
[choices.KEY] what = "...", value = {fields}; said = "..." is noted
[uncounted], [saves]             key = "what it is", or what Uncounted takes
[multi_gpu.same], ...           what holds where there are several GPUs
[as] key = "another"             as another key of this table
[within] "fsdp_config." = "fsdp" the keys of another file's table, with this before each
base = ["training_arguments"]    files whose tables this one goes on from
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vrambudget.config.foreign.meanings import (
    Meaning,
    ModelName,
    OneOf,
    Same,
    SizesInText,
    Switch,
    Table,
    Uncounted,
    ignored,
    of_ranks,
    on_multi_gpu,
)
from vrambudget.files import toml_beside

TABLES = Path(__file__).parent / "tables"
_SWITCH = {"on", "off", "assumed", "said"}


@cache
def read_file(name: str) -> Mapping[str, Any]:
    """Return what a tool's file holds."""
    return toml_beside(__file__, f"tables/{name}.toml")


@cache
def read_table(name: str) -> Table:
    """Return what each key of a tool means."""
    return table_of(read_file(name))


def table_of(own: Mapping[str, Any]) -> dict[str, Meaning]:
    """Return the table that a file's keys are."""
    table = {key: way for name in own.get("base", ()) for key, way in read_table(name).items()}
    if "model" in own:
        table[own["model"]] = ModelName()
    table |= {**_meanings(own), **on_multi_gpu(_meanings(own.get("multi_gpu", {})))}
    for before, name in own.get("within", {}).items():
        table |= {f"{before}{key}": way for key, way in read_table(name).items()}
    table |= {key: table[another] for key, another in own.get("as", {}).items()}
    return table


def _meanings(own: Mapping[str, Any]) -> dict[str, Meaning]:
    def of(group: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = own.get(group, {})
        return found

    return {
        **{key: _same(field) for key, field in of("same").items()},
        **{key: SizesInText(field, pairs=True) for key, field in of("width_height").items()},
        **{key: SizesInText(field, pairs=False) for key, field in of("largest").items()},
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
