"""Where a model's configuration comes from: a model card, a path, a hub repository, or a dict.

A file of a run (`config.foreign.run_file`) may name it, and say how it is trained.

A name is looked up in this order: the name of a model card; a path that exists; another spelling of
a model card's name; the hub repository of a model card; a hub repository, from the local cache or
downloaded. A folder with the name of a model card is reached as `./gpt2`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vrambudget.bounded import check
from vrambudget.config.cards import (
    ModelCard,
    card_name,
    card_names,
    card_of_repository,
    gguf_names,
    load_card,
    near_names,
)
from vrambudget.config.config_file import CONFIG_NAME, SUFFIXES, read_config
from vrambudget.config.hub import REPOSITORY, hub_config
from vrambudget.config.said_by_config import job_of_config
from vrambudget.config.settings import show
from vrambudget.errors import VramBudgetError, check_name
from vrambudget.escaping import escaped
from vrambudget.files import home_of

if TYPE_CHECKING:
    from vrambudget.config.foreign.run_file import RunFile

_QUANTISED = re.compile(
    r"[-_](unsloth-)?(bnb[-_]4bit|[48]bit|awq|gptq|gguf|int[48]|fp8).*", re.IGNORECASE
)
_TUNED = re.compile(r"[-_](instruct|chat|it|base|thinking)$")


@dataclass(frozen=True, slots=True)
class ModelWithFiles:
    """A model with files that say how it is run; without a model, one of the files names it."""

    model: str | Path | Mapping[str, Any] | None
    files: tuple[Path, ...]


ModelSource = str | Path | Mapping[str, Any] | ModelWithFiles
"""What names a model."""


PROGRAM = ".program"
"""How the name of a recorded program's file ends; of a found model: the key with its path."""

Files = str | Path | Sequence[str | Path]
"""One file, or several."""


def of_files(model: ModelSource | None, files: Files) -> ModelSource:
    """Return the model with the files; without files and a model, one that cannot be found."""
    paths = (files,) if isinstance(files, str | Path) else tuple(files)
    if isinstance(model, ModelWithFiles):
        return ModelWithFiles(model.model, (*model.files, *map(Path, paths)))
    return (
        model if model is not None and not paths else ModelWithFiles(model, tuple(map(Path, paths)))
    )


class FoundModel(NamedTuple):
    """A model's configuration as it was found; `where` is for error messages."""

    name: str
    where: str
    values: Mapping[str, Any]
    card: ModelCard | None = None
    run: "RunFile | None" = None  # what files say of the job
    path: str | None = None  # of a file or folder that was named

    @property
    def job_defaults(self) -> Mapping[str, Any]:
        """How the model is trained: by its configuration, its model card, and the files."""
        usual = {**job_of_config(self.values), **(self.card.job if self.card else {})}
        return {**usual, **self.run.assumed, **self.run.fields} if self.run else usual

    def on(self, ranks: int | None, *, parallel: str | None) -> "FoundModel":
        """Return the same for a job of so many GPUs, or as many as the files say.

        A `parallel` that is named goes before the files' own, with all that belongs to it.
        """
        if self.run is None:
            return self
        said = self.run.of_ranks.fields.get("ranks", 1)
        run = self.run.on(ranks or said)
        if parallel is not None:
            run = replace(run, fields={"ranks": run.fields.get("ranks"), **self.run.fields})
        return self._replace(run=run)


def find_model(name: ModelSource) -> FoundModel:
    """Return the model that `name` means. Raises VramBudgetError that says what to type instead."""
    if isinstance(name, ModelWithFiles):
        return _of_run(name.model, name.files)
    if isinstance(name, str | Path) and _is_run_file(name):
        return _of_run(None, (Path(name),))
    return _of_name(name)


def _is_run_file(name: str | Path) -> bool:
    """Return whether this names a file of a run; other tools' words are loaded to read one."""
    if Path(name).suffix not in SUFFIXES:
        return False
    from vrambudget.config.foreign.run_file import is_run_file  # noqa: PLC0415

    return is_run_file(name)


def _of_run(model: str | Path | Mapping[str, Any] | None, files: Sequence[Path]) -> FoundModel:
    """Return the model, with what the files say of its job."""
    from vrambudget.config.foreign.hugging_face import with_default_targets  # noqa: PLC0415
    from vrambudget.config.foreign.run_file import merged, read_run_file  # noqa: PLC0415

    first = model if isinstance(model, str | Path) and _is_run_file(model) else None
    if first is not None:
        model, files = None, (Path(first), *files)
    run = merged([read_run_file(file) for file in files])
    source = run.model if model is None else model
    if source is None:
        silent = " and ".join(file.name for file in files)
        raise VramBudgetError(
            f"{silent} names no model" if silent else "no model is named",
            hint="vrambudget MODEL --config FILE names both; `vrambudget models` lists models",
        )
    found = _of_name(source)
    fields = with_default_targets(run.fields, run.assumed, str(found.values.get("model_type")))
    return found._replace(run=replace(run, fields=fields))


def _of_name(name: str | Path | Mapping[str, Any]) -> FoundModel:
    if isinstance(name, Mapping):
        return _given(name)
    if isinstance(name, Path):
        return _from_path(name)
    if not isinstance(name, str):
        raise VramBudgetError(f"a model is a name, a path or a dict, not {show(name)}")
    return _from_name(name if os.path.lexists(name) else name.strip())


def _from_name(name: str) -> FoundModel:
    if (plain := name.lower().removesuffix(".pt")) in card_names():  # ultralytics' yolo11x.pt
        return _from_card(load_card(plain))
    if name.endswith(".py"):
        raise VramBudgetError(
            f"{show(name)} is a script, not a model",
            hint=f"`vrambudget rehearse --gpu GPU -- python {name}` runs it on a virtual GPU",
        )
    if name.endswith(".gguf"):
        raise VramBudgetError(
            f"{show(name)} is a GGUF file: llama.cpp and Ollama run it",
            hint=f"`vrambudget run {name} --gpu GPU` estimates it; to train, name its base model",
        )
    if _is_path(name):
        return _from_path(home_of(Path(name)))
    if "/" not in name and card_name(name):
        check_name(name, "model")
        return _from_card(load_card(name))
    if REPOSITORY.fullmatch(name):
        return _from_hub(name)
    base, colon, size = name.partition(":")
    if colon and card_name(base):
        of_size = near_names(name.replace(":", "-")) if size[:1].isdigit() else None
        raise VramBudgetError(
            f"{show(name)} is a GGUF file's name: llama.cpp and Ollama run it",
            hint=f"`vrambudget run {name} --gpu GPU` estimates it; to train it:"
            f" {of_size or card_name(base)}",
        )
    raise VramBudgetError(f"there is no model {show(name)}", hint=_doors(name))


def _doors(name: str) -> str:
    """Return where a name may be understood after all: a slip, or a model of no rules."""
    ways = "`vrambudget models` lists the names; a config.json or a hub id org/name works too"
    wanted, near = name.lower(), near_names(name) or ""
    bare = _TUNED.sub("", wanted)
    of_run = [known for known in gguf_names() if known.startswith(bare) or bare.endswith(known)]
    if of_run and not near.startswith("there "):
        best = bare if bare in of_run else of_run[0]
        near = f"`vrambudget run {best} --gpu GPU` estimates it as a GGUF file; to train it:"
    if near:
        return f"{near} {ways}"
    return (
        f"{ways}; a model of timm, diffusers or your own: vrambudget.preflight(model) in Python,"
        " or `vrambudget rehearse --gpu GPU -- python train.py`"
    )


def _is_path(name: str) -> bool:
    """Return whether this is a path: of what may be an org/name too, whether it exists."""
    if name.startswith((".", "/", "~")) or name.endswith((*SUFFIXES, PROGRAM)) or "\\" in name:
        return True
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):  # too long, or with a null character: no file's name
        return False


def _from_card(card: ModelCard) -> FoundModel:
    return FoundModel(card.name, f"model card {card.name}", card.config, card)


def _from_path(path: Path) -> FoundModel:
    if path.suffix == PROGRAM:  # vrambudget.program reads it
        values = {"model_type": path.stem, PROGRAM: str(path)}
        return FoundModel(escaped(path.stem), str(path), values, path=str(path))
    values, file = read_config(path)
    if "model_type" not in values and str(values.get("architecture")) in card_names():  # timm's
        return _from_card(load_card(values["architecture"]))._replace(path=str(path))
    named = file.parent.resolve().name if file.name == CONFIG_NAME else file.stem
    return FoundModel(escaped(named or str(path)), str(file), values, path=str(path))


def _from_hub(repository: str) -> FoundModel:
    if card := card_of_repository(repository):
        return _from_card(card)
    try:
        config = hub_config(repository)
    except VramBudgetError as error:
        if base := card_name(_QUANTISED.sub("", repository.rpartition("/")[2])):
            error.hint = f"its base model is known here as {base}; {error.hint}"
        raise
    values, file = read_config(config)
    return FoundModel(repository, str(file), values)


def _given(values: Mapping[str, Any]) -> FoundModel:
    if not all(isinstance(key, str) for key in values):
        raise VramBudgetError("the keys of a configuration should be text", where="the given dict")
    check(values)
    return FoundModel(str(values.get("model_type", "model")), "the given dict", dict(values))
