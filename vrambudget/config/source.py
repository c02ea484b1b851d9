"""Where a model's configuration comes from: a model card, a path, a hub repository, or a dict.

A name is looked up in this order: the name of a model card; a path that exists; another spelling of
a model card's name; the hub repository of a model card; a hub repository, from the local cache or
downloaded. A folder with the name of a model card is reached as `./gpt2`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vrambudget.config.cards import Card, card_name, card_names, card_of_repository, load_card
from vrambudget.config.config_file import read_config
from vrambudget.config.hub import REPOSITORY, hub_config
from vrambudget.config.settings import show
from vrambudget.errors import VramBudgetError, did_you_mean, escaped
from vrambudget.files import home_of

ModelSource = str | Path | Mapping[str, Any]
"""What names a model."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model's configuration as it was found; `where` is for error messages."""

    name: str
    where: str
    values: Mapping[str, Any]
    card: Card | None = None

    @property
    def job_defaults(self) -> Mapping[str, Any]:
        """How the model is usually trained, according to its model card."""
        return self.card.job if self.card else {}


def find_model(name: ModelSource) -> FoundModel:
    """Return the model that `name` means. Raises VramBudgetError that says what to type instead."""
    if isinstance(name, Mapping):
        return _given(name)
    if isinstance(name, Path):
        return _from_path(name)
    if not isinstance(name, str):
        raise VramBudgetError(f"a model is a name, a path or a dict, not {show(name)}")
    return _from_name(name.strip())


def _from_name(name: str) -> FoundModel:
    if name.lower() in card_names():
        return _from_card(load_card(name))
    if _is_path(name):
        return _from_path(home_of(Path(name)))
    if "/" not in name and card_name(name):
        return _from_card(load_card(name))
    if REPOSITORY.fullmatch(name):
        return _from_hub(name)
    near = did_you_mean(name.lower(), card_names())
    ways = "`vrambudget models` lists the names; a config.json or a hub id org/name works too"
    raise VramBudgetError(
        f"there is no model {show(name)}", hint=f"{near} {ways}" if near else ways
    )


def _is_path(name: str) -> bool:
    """Return whether this is a path, not a name or an org/name: if in doubt, whether it exists."""
    if name.startswith((".", "/", "~")) or name.endswith(".json") or "\\" in name:
        return True
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):  # too long, or with a null character: no file's name
        return False


def _from_card(card: Card) -> FoundModel:
    return FoundModel(card.name, f"model card {card.name}", card.config, card)


def _from_path(path: Path) -> FoundModel:
    values, file = read_config(path)
    return FoundModel(escaped(file.parent.resolve().name or str(path)), str(file), values)


def _from_hub(repository: str) -> FoundModel:
    if card := card_of_repository(repository):
        return _from_card(card)
    values, file = read_config(hub_config(repository))
    return FoundModel(repository, str(file), values)


def _given(values: Mapping[str, Any]) -> FoundModel:
    if not all(isinstance(key, str) for key in values):
        raise VramBudgetError("the keys of a configuration should be text", where="the given dict")
    return FoundModel(str(values.get("model_type", "model")), "the given dict", dict(values))
