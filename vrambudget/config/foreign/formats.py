"""The files that people have: which tool's a file is, and what is assumed where it is silent.

A file belongs to the first format that it has a key of its own of. Of each tool a file in `tables`
says, besides the table of its keys:

    name, marks                     what it is called; the keys of its own
    [defaults] field = value        its own defaults, where they differ from a job's, besides those
                                    of the files that it goes on from
    groups, ranks_groups            keys under which nothing decides memory, or only several GPUs do
    always                          what is to be noted of each of its files
    files key = "group"             keys that name a JSON file, and what its keys then begin with
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vrambudget.config.foreign import hugging_face, torchtitan, torchtune
from vrambudget.config.foreign.meanings import Fields, ModelName, Table
from vrambudget.config.foreign.tables import read_file, read_table

Finish = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Format:
    """One tool's files."""

    name: str
    marks: frozenset[str]
    table: Table
    defaults: Fields = field(default_factory=dict)
    ignored_groups: tuple[str, ...] = ()
    ranks_groups: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    finish: Finish = lambda _keys, fields: fields
    of_ranks: Callable[[Mapping[str, Any]], Fields] = lambda _keys: {}
    """What several keys say together where there are several GPUs."""
    model_of: Callable[[str], str | dict[str, Any]] = str
    """The model that its word for one means."""

    @property
    def model_key(self) -> str | None:
        """The key that names the model."""
        return next((key for key, way in self.table.items() if isinstance(way, ModelName)), None)


def _read(file: str, **functions: Any) -> Format:
    own = read_file(file)
    defaults: dict[str, Any] = {}
    for each in (*map(read_file, own.get("base", ())), own):
        defaults |= each.get("defaults", {})
    return Format(
        own["name"],
        frozenset(own["marks"]),
        read_table(file),
        defaults,
        tuple(own.get("groups", ())),
        tuple(own.get("ranks_groups", ())),
        tuple(own.get("always", ())),
        own.get("files", {}),
        **functions,
    )


FORMATS = (
    _read("torchtune", finish=torchtune.finished, model_of=torchtune.model_of),
    _read(
        "torchtitan",
        finish=torchtitan.finished,
        of_ranks=torchtitan.of_ranks_of,
        model_of=torchtitan.model_of,
    ),
    _read("ultralytics"),
    _read("axolotl"),
    _read("llama_factory", finish=hugging_face.of_llama_factory),
    _read("deepspeed"),
    _read("accelerate"),
    _read("trl", finish=hugging_face.of_trl),
    _read("training_arguments"),
)


def format_of(keys: Mapping[str, Any]) -> Format | None:
    """Return the format whose keys these are, None for a file of another kind.

    What transformers writes of a model is none, though it may have a max_length of its own.
    """
    if {"architectures", "transformers_version"} & keys.keys():
        return None
    return next((each for each in FORMATS if each.marks & keys.keys()), None)
