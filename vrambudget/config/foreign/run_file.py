"""A file that describes a run: a model, perhaps, and fields of a job.

    run.toml        torchtitan
    run.yaml        TRL, axolotl, LLaMA-Factory, torchtune, accelerate, TrainingArguments
    args.json       TrainingArguments, DeepSpeed
    job.toml        this project's own: `model`, `gpu` and a job's fields

Every key is read, ignored for it decides no memory, or listed: nothing is dropped in silence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vrambudget.config.config_file import SUFFIXES
from vrambudget.config.foreign.formats import FORMATS, Format, format_of
from vrambudget.config.foreign.hugging_face import completed
from vrambudget.config.foreign.meanings import Ignored, Meaning, ModelName, MultiGpuOnly, OnlyRanks
from vrambudget.config.foreign.text import flat, read_text
from vrambudget.config.job import Job
from vrambudget.errors import VramBudgetError, did_you_mean

_OWN = {"model", "gpu"}


@dataclass(frozen=True, slots=True)
class OfRanks:
    """What a file says for a job of several GPUs, and for no other; `keys` are all that it read."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()  # keys that decide nothing here
    uncounted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunFile:
    """What a file says of a run; `notes` and `uncounted` are for the report."""

    model: str | Mapping[str, Any] | None
    gpu: str | None
    fields: Mapping[str, Any]
    assumed: Mapping[str, Any] = field(default_factory=dict)  # where the file is silent
    notes: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    where: str | None = None
    of_ranks: OfRanks = OfRanks()

    def on(self, ranks: int) -> "RunFile":
        """Return what the file says for a job of so many GPUs."""
        of_ranks = self.of_ranks
        if ranks == 1:
            keys = (*of_ranks.keys, *of_ranks.unread)
            note = f"{self.where}: of several GPUs, without meaning for one: {', '.join(keys)}"
            return replace(self, notes=(*self.notes, note)) if keys else self
        notes = {
            "of several GPUs, read": of_ranks.keys,
            "of several GPUs, left out": of_ranks.unread,
        }
        notes_of_ranks = (
            f"{self.where}: {what}: {', '.join(keys)}" for what, keys in notes.items() if keys
        )
        own = {**self.assumed, **self.fields}
        loop = {"loop": own["loop"]} if "loop" in own else {}  # a script's, whatever launches it
        return replace(
            self,
            fields={**self.fields, **of_ranks.fields, **loop},
            notes=(*self.notes, *notes_of_ranks),
            uncounted=(*self.uncounted, *of_ranks.uncounted),
        )


def is_run_file(name: str | Path) -> bool:
    """Return whether this names a file of a run, not a model's configuration."""
    path = Path(name)
    try:
        if path.suffix not in SUFFIXES or not path.is_file():
            return False
        return path.suffix != ".json" or format_of(flat(read_text(path), str(path))) is not None
    except (OSError, ValueError):  # no file's name; VramBudgetError: no object, so no run
        return False


def read_run_file(path: Path) -> RunFile:
    """Return what the file says. Raises VramBudgetError that names the file and the key."""
    values = read_text(path)
    keys = flat(values, str(path))
    known = format_of(keys)
    if known is None and (path.suffix == ".toml" or _OWN & values.keys()):
        return _own(values, str(path))
    if known is None:
        raise VramBudgetError(
            "no tool's file has these keys",
            where=str(path),
            hint=f"read are files of {', '.join(each.name for each in FORMATS)}, and this tool's"
            " own: model, gpu and a job's fields",
        )
    for key, group in known.files.items():
        if isinstance(file := keys.get(key), str) and file.endswith(".json"):
            named = path.parent / file
            keys |= {f"{group}.{k}": v for k, v in flat(read_text(named), str(named)).items()}
    return read_foreign(keys, known, path.name)


def _silent(defaults: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of what is not stated; an optimizer brings its implementation."""
    of_optimizer = {"optimizer_impl"} if "optimizer" in stated else set()
    return {k: v for k, v in defaults.items() if k not in stated and k not in of_optimizer}


def _own(values: Mapping[str, Any], where: str) -> RunFile:
    fields = {key: value for key, value in values.items() if key not in _OWN}
    for key in _OWN & values.keys():
        if not isinstance(values[key], str):
            raise VramBudgetError(f"{key} is {values[key]!r}; it should be text", where=where)
    for key in fields.keys() - Job.known_keys():
        near = did_you_mean(key, Job.known_keys() | _OWN)
        raise VramBudgetError(f"{key} is no field of a job", where=where, hint=near)
    return RunFile(values.get("model"), values.get("gpu"), fields, where=where)


def merged(runs: Sequence[RunFile]) -> RunFile:
    """Return what the files say together; what a later one says goes before an earlier one's."""
    fields = {name: value for run in runs for name, value in run.fields.items()}
    assumed = {name: value for run in runs for name, value in run.assumed.items()}
    return RunFile(
        next((run.model for run in runs if run.model), None),
        next((run.gpu for run in runs if run.gpu), None),
        fields,
        _silent(assumed, fields),
        tuple(note for run in runs for note in run.notes),
        tuple(dict.fromkeys(each for run in runs for each in run.uncounted)),
        " and ".join(run.where for run in runs if run.where),
        _joined([run.of_ranks for run in runs]),
    )


def _joined(found: Sequence[OfRanks]) -> OfRanks:
    return OfRanks(
        {name: value for each in found for name, value in each.fields.items()},
        tuple(key for each in found for key in each.keys),
        tuple(key for each in found for key in each.unread),
        tuple(dict.fromkeys(what for each in found for what in each.uncounted)),
    )


def read_foreign(keys: dict[str, Any], known: Format, file: str) -> RunFile:
    """Return what the keys of a tool's file say, the tool's defaults where they are silent."""
    sorted_ = _Sorted(known)
    for key, value in keys.items():
        sorted_.take(key, value)
    silent = _silent(known.defaults, sorted_.stated)
    fields = completed(known.finish(keys, {**silent, **sorted_.assumed, **sorted_.stated}))
    assumed = {name: value for name, value in silent.items() if fields.get(name) == value}
    notes = {
        f"{file} ({known.name}): read": sorted_.read,
        f"{file} is silent; {known.name}'s defaults": [f"{k} {v}" for k, v in assumed.items()],
        f"{file}: not known here, ignored": sorted_.unknown,
    }
    return RunFile(
        _model(keys, known),
        None,
        {name: value for name, value in fields.items() if name not in assumed},
        assumed,
        (
            *(f"{what}: {', '.join(names)}" for what, names in notes.items() if names),
            *(f"{file}: {noted}" for noted in sorted_.noted),
        ),
        tuple(sorted_.uncounted),
        file,
        OfRanks(
            {**sorted_.fields_of_ranks(), **known.of_ranks(keys)},
            tuple(sorted_.stated_of_ranks),
            tuple(sorted_.ranks),
            tuple(sorted_.uncounted_of_ranks),
        ),
    )


class _Sorted:
    """The keys of a file, each where it belongs."""

    def __init__(self, known: Format) -> None:
        self.known = known
        self.stated: dict[str, Any] = {}
        self.assumed: dict[str, Any] = {}
        self.uncounted: dict[str, None] = {}
        self.noted = dict.fromkeys(known.always)
        self.read: list[str] = []
        self.ranks: list[str] = []
        self.stated_of_ranks: dict[str, Mapping[str, Any]] = {}
        self.uncounted_of_ranks: dict[str, None] = {}
        self.unknown: list[str] = []

    def fields_of_ranks(self) -> dict[str, Any]:
        """Return what the keys say of several GPUs, in the table's order: a later one counts."""
        keys = [key for key in self.known.table if key in self.stated_of_ranks]
        return {name: value for key in keys for name, value in self.stated_of_ranks[key].items()}

    def take(self, key: str, value: Any) -> None:
        """Sort one key."""
        meaning = self.known.table.get(key)
        if isinstance(meaning, OnlyRanks) or _within(key, self.known.ranks_groups, meaning):
            self.ranks.append(key)
        elif meaning is None and not _within(key, self.known.ignored_groups, meaning):
            self.unknown.append(key)
        elif isinstance(meaning, MultiGpuOnly):
            found = meaning.translate(value)
            self.stated_of_ranks[key] = found.fields
            self.uncounted_of_ranks |= {found.uncounted: None} if found.uncounted else {}
            self.noted |= {found.noted: None} if found.noted else {}
        elif meaning is not None and not isinstance(meaning, Ignored | ModelName):
            found = meaning.translate(value)
            self.stated.update(found.fields)
            self.assumed.update(found.assumed)
            self.uncounted |= {found.uncounted: None} if found.uncounted else {}
            self.noted |= {found.noted: None} if found.noted else {}
            self.read.append(key)


def _within(key: str, groups: tuple[str, ...], meaning: Meaning | None) -> bool:
    """Return whether a key without a meaning of its own lies in one of the groups."""
    return meaning is None and any(key == each or key.startswith(f"{each}.") for each in groups)


def _model(keys: Mapping[str, Any], known: Format) -> str | dict[str, Any] | None:
    name = keys.get(known.model_key) if known.model_key else None
    return None if name is None else known.model_of(str(name))
