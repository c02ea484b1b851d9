"""A file that describes a run: a model, perhaps, and fields of a job.

    run.yaml        TRL, axolotl, LLaMA-Factory, torchtune, accelerate, TrainingArguments
    args.json       TrainingArguments, DeepSpeed
    job.toml        this project's own: `model`, `gpu` and a job's fields

Every key is read, ignored for it decides no memory, or listed: nothing is dropped in silence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vrambudget.config.config_file import SUFFIXES
from vrambudget.config.foreign import torchtune
from vrambudget.config.foreign.formats import FORMATS, Format, format_of
from vrambudget.config.foreign.hugging_face import settled
from vrambudget.config.foreign.meanings import Ignored, Meaning, Model, Ranks
from vrambudget.config.foreign.text import flat, read_text
from vrambudget.config.job import Job
from vrambudget.errors import VramBudgetError, did_you_mean

_OWN = {"model", "gpu"}


@dataclass(frozen=True, slots=True)
class RunFile:
    """What a file says of a run; `notes` and `uncounted` are for the report."""

    model: str | None
    gpu: str | None
    fields: Mapping[str, Any]
    assumed: Mapping[str, Any] = field(default_factory=dict)  # where the file is silent
    notes: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    where: str | None = None


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
    if path.suffix == ".toml" or (_OWN & values.keys() and not format_of(flat(values, str(path)))):
        return _own(values, str(path))
    keys = flat(values, str(path))
    known = format_of(keys)
    if known is None:
        raise VramBudgetError(
            "no tool's file has these keys",
            where=str(path),
            hint=f"read are files of {', '.join(each.name for each in FORMATS)}, and this tool's"
            " own: model, gpu and a job's fields",
        )
    return _foreign(keys, known, path.name)


def _silent(defaults: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of what is not told; an optimizer brings its implementation."""
    of_optimizer = {"optimizer_impl"} if "optimizer" in told else set()
    return {k: v for k, v in defaults.items() if k not in told and k not in of_optimizer}


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
    )


def _foreign(keys: dict[str, Any], known: Format, file: str) -> RunFile:
    sorted_ = _Sorted(known)
    for key, value in keys.items():
        sorted_.take(key, value)
    silent = _silent(known.defaults, sorted_.told)
    fields = settled(known.finish(keys, {**silent, **sorted_.assumed, **sorted_.told}))
    assumed = {name: value for name, value in silent.items() if fields.get(name) == value}
    notes = {
        f"{file} ({known.name}): read": sorted_.read,
        f"{file} is silent; {known.name}'s defaults": [f"{k} {v}" for k, v in assumed.items()],
        f"{file}: of several GPUs, not counted for one": sorted_.ranks,
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
    )


class _Sorted:
    """The keys of a file, each where it belongs."""

    def __init__(self, known: Format) -> None:
        self.known = known
        self.told: dict[str, Any] = {}
        self.assumed: dict[str, Any] = {}
        self.uncounted: dict[str, None] = {}
        self.noted = dict.fromkeys(known.always)
        self.read: list[str] = []
        self.ranks: list[str] = []
        self.unknown: list[str] = []

    def take(self, key: str, value: Any) -> None:
        """Sort one key."""
        meaning = self.known.table.get(key)
        if isinstance(meaning, Ranks) or _within(key, self.known.ranks_groups, meaning):
            self.ranks.append(key)
        elif meaning is None and not _within(key, self.known.ignored_groups, meaning):
            self.unknown.append(key)
        elif meaning is not None and not isinstance(meaning, Ignored | Model):
            told = meaning.told(value)
            self.told.update(told.fields)
            self.assumed.update(told.assumed)
            self.uncounted |= {told.uncounted: None} if told.uncounted else {}
            self.noted |= {told.noted: None} if told.noted else {}
            self.read.append(key)


def _within(key: str, groups: tuple[str, ...], meaning: Meaning | None) -> bool:
    """Return whether a key without a meaning of its own lies in one of the groups."""
    return meaning is None and any(key == each or key.startswith(f"{each}.") for each in groups)


def _model(keys: Mapping[str, Any], known: Format) -> str | None:
    name = keys.get(known.model_key) if known.model_key else None
    if name is None:
        return None
    return torchtune.model_of(str(name)) if known.name == "torchtune" else str(name)
