"""What a trainer's file or command line asks of a pipeline, in this tool's words.

    sd-scripts' config.toml, ai-toolkit's config.yaml, OneTrainer's and SimpleTuner's config.json
    accelerate launch train_dreambooth_lora_flux.py --rank 16 ... --gpu 24GB
    sdxl_train_network.py --config_file config.toml --network_dim 32 --gpu 12GB

What stands beside a file or among a script's arguments in this tool's own words goes before.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vrambudget.config.cards import picture_names
from vrambudget.config.foreign.run_file import RunFile, read_foreign
from vrambudget.config.foreign.text import read_values
from vrambudget.config.foreign.trainers import Trainer, trainers
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.pictures.cards import card, picture_name

_OF_ADAPTERS = {"rank", "adapters", "targets"}  # what a training of all weights has not
_LAUNCHERS = {"accelerate", "launch", "python", "python3", "torchrun", "-m"}


def in_options(words: Sequence[str], options: Collection[str] | None = None) -> Sequence[str]:
    """Return a trainer's file or command as a pipeline and its options; others' as they are.

    `options`: those that a command has, None for all.

    Raises VramBudgetError for a file that cannot be read or names no pipeline.
    """
    scripts = {name: t for t in trainers() for name in t.own.get("scripts", ())}
    at = next((n for n, word in enumerate(words) if Path(word).name in scripts), None)
    if at is not None:
        name = Path(words[at]).name
        trainer, fields = scripts[name], dict(scripts[name].own["scripts"][name])
        launched, unknown = _arguments(words[:at], trainer)
        if strange := [word for word in unknown if word not in _LAUNCHERS]:
            raise NotModelledError(f"{strange[0]} before {name} has no counterpart here")
        stated, own = _arguments(words[at + 1 :], trainer)
        keys = {**launched, **_with_files(stated, trainer, Path())}
        return [*_chosen(_options(keys, trainer, fields, name, None), options), *own]
    file = next((n for n, word in enumerate(words) if _is_file(word)), None)
    if file is None:
        return words
    before = [word for word in words[:file] if word != "--config"]
    named = before[0] if before and picture_name(before[0]) else None
    try:
        found = _read(path := Path(words[file]))
    except VramBudgetError:
        if named and words[file - 1] == "--config":
            raise
        return words  # who reads it as what it is says why it cannot be read
    if not found:
        return words
    trainer, keys = found
    given = _options(keys, trainer, {}, path.name, named)
    return [*_chosen(given, options), *before[named is not None :], *words[file + 1 :]]


def _chosen(words: Sequence[str], options: Collection[str] | None) -> Sequence[str]:
    known = words if options is None else [w for w in words if w.partition("=")[0] in options]
    return [words[0], *(word for word in known if word.startswith("--"))]


def _read(path: Path) -> tuple[Trainer, dict[str, Any]] | None:
    """Return the trainer whose file this is, with its keys; None for one of another kind."""
    values = read_values(path)
    stated = {t.known.name: t.keys_of(values) for t in trainers() if isinstance(values, Mapping)}
    own = [t for t in trainers() if t.known.marks & stated.get(t.known.name, {}).keys()]
    if not own:
        return None
    nearest = max(own, key=lambda t: len(t.known.table.keys() & stated[t.known.name].keys()))
    return nearest, _with_files(stated[nearest.known.name], nearest, path.parent)


def _with_files(keys: dict[str, Any], trainer: Trainer, folder: Path) -> dict[str, Any]:
    """Return the keys with those of the files that they name, where these are here."""
    for key in trainer.own.get("files", ()):
        named = str(keys.get(key))
        for file in [path for path in (folder / named, Path(named)) if _is_file(path)][:1]:
            values = read_values(file)
            stated = values if isinstance(values, Mapping) else {"": values}
            keys = {**trainer.keys_of(stated), **keys}
    return keys


def _is_file(path: str | Path) -> bool:
    """Return whether this names a file; any text may come, with a null byte or too long."""
    return os.path.isfile(path)  # noqa: PTH113 - Path's raises of such


def _arguments(words: Sequence[str], trainer: Trainer) -> tuple[dict[str, Any], list[str]]:
    """Return a command's arguments as keys, and the words that are none of the trainer's."""
    keys, others, n = dict[str, Any](), list[str](), 0
    while n < len(words):
        name, sign, value = words[n].partition("=")
        end = n = n + 1
        while not sign and end < len(words) and not words[end].startswith("-"):
            end += 1
        key, values = name.lstrip("-").replace("-", "_"), [value] if sign else [*words[n:end]]
        if name.startswith("--") and key in trainer.known.table:
            keys[key] = True if not values else values[0] if len(values) == 1 else values
        else:
            others += words[n - 1 : end]
        n = end
    return keys, others


def _options(
    keys: dict[str, Any], trainer: Trainer, said: dict[str, Any], where: str, named: str | None
) -> list[str]:
    """Return what keys say as words; `said` of a script; `named` by the user."""
    run = _translated(keys, trainer, said, where)
    name = named or _pipeline(run, where)
    others = tuple(k for k, names in trainer.own.get("only", {}).items() if name not in names)
    if others:
        keys = {k: v for k, v in keys.items() if not k.startswith(others)}
        run = _translated(keys, trainer, said, where, others)
    targets = {n: t for names, t in trainer.own.get("targets", {}).items() for n in names.split()}
    fields = {"targets": targets.get(name), **run.assumed, **run.fields}
    if fields.get("train") != "lora":
        fields = {key: value for key, value in fields.items() if key not in _OF_ADAPTERS}
    notes = [*run.notes]
    if isinstance(run.model, str) and not _known(run.model):
        notes.insert(0, f"{where} names {run.model}: taken as {card(name)['title']}")
    words = {**fields, "model": None}
    return [
        name,
        *(f"--{key}={value}" for key, value in words.items() if value is not None),
        *(f"--noted={note}" for note in notes),
        *(f"--uncounted={what}" for what in dict.fromkeys(run.uncounted)),
    ]


def _translated(
    keys: Mapping[str, Any],
    trainer: Trainer,
    said: Mapping[str, Any],
    where: str,
    without: tuple[str, ...] = (),
) -> RunFile:
    """Return what keys say; the trainer's own defaults hold where they are silent."""
    known, silent = trainer.known, trainer.own["silent"]
    defaulted, missing = dict[str, Any](), list[str]()
    for key in known.table:
        if key in silent and key not in keys and not (without and key.startswith(without)):
            found: Any = known.table[key].translate(silent[key])
            defaulted |= found.fields
            missing += [found.uncounted] if found.uncounted else []
    ordered = {key: keys[key] for key in known.table if key in keys}
    run = read_foreign({**ordered, **keys}, replace(known, defaults={**defaulted, **said}), where)
    return replace(run, uncounted=(*run.uncounted, *missing))


def _known(checkpoint: str) -> str | None:
    """Return the pipeline that a hub id or a published checkpoint's file is of."""
    plain = Path(checkpoint).name.lower().replace("-", "_")
    of_files = (n for n in picture_names() if plain.startswith(card(n).get("checkpoint", "\n")))
    return next(of_files, None) or (picture_name(checkpoint) if "/" in checkpoint else None)


def _pipeline(run: RunFile, where: str) -> str:
    """Return the pipeline that a file is of. Raises NotModelledError for one that is not known."""
    stated, checkpoint = {**run.assumed, **run.fields}.get("model"), run.model
    found = _known(checkpoint) if isinstance(checkpoint, str) else None
    if found or stated:
        return str(found or stated)
    pipelines = [what for what in run.uncounted if what.startswith("a pipeline")]
    raise NotModelledError(
        pipelines[0] if pipelines else f"no pipeline is known as {checkpoint!r}",
        where=where,
        hint=f"`vrambudget NAME --config {where}` names one: {', '.join(picture_names())}",
    )
