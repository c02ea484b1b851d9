"""Models that are run or served by their name, and that have no model card for training.

    model_cards/gguf/NAME.toml      name, source, `also` (other names), [config] as it was
                                    published, or [gguf]: its file's header (`gguf_cards`)

Of each family one or more were loaded by llama.cpp 0c1e570 with `gguf_cards`' tensors.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vrambudget.config.cards import card_text, cards_folder, gguf_names
from vrambudget.config.source import FoundModel, ModelSource, find_model
from vrambudget.errors import VramBudgetError


def known(name: str) -> FoundModel | str:
    """Return the configuration of a name; of any other the name of its card, or itself."""
    return _published(name) or _also().get(_plain(name), name)


def card_of(name: str) -> Mapping[str, Any]:
    """Return the model card of a name; of any other nothing."""
    plain = _also().get(_plain(name), _plain(name))
    for each in (plain,) if plain in gguf_names() else gguf_names():
        if plain == each or f'"{plain}"' in _text(each):  # saves parsing them all
            card = tomllib.loads(_text(each))
            if plain in (each, *card.get("also", ())):
                return card
    return {}


def find_served(model: ModelSource) -> FoundModel:
    """Return a model that a server is asked for; offline, a hub id is known by its name.

    Raises VramBudgetError.
    """
    if not isinstance(model, str) or Path(model).exists():
        return find_model(model)
    organisation, _, name = model.rpartition("/")
    if not organisation:
        return _published(name) or find_model(_also().get(_plain(name), name))
    try:
        return find_model(model)
    except VramBudgetError:
        if (found := _published(name)) is None:
            raise
        return found


def _plain(name: str) -> str:
    return re.sub(r"[-_](instruct|it|chat|base)$", "", re.sub("[_:]", "-", name.strip().lower()))


def _published(name: str) -> FoundModel | None:
    card = card_of(name)
    if "config" not in card:
        return None
    config = {k: None if v == "null" else v for k, v in card["config"].items()}
    return FoundModel(card["name"], card["name"], config)


@cache
def _text(name: str) -> str:
    return card_text(cards_folder() / "gguf" / f"{name}.toml")


@cache
def _also() -> Mapping[str, str]:
    """Return the names of models that have a card under another; Ollama's among them."""
    return dict(tomllib.loads(card_text(cards_folder() / "gguf" / "names" / "ollama.toml"))["also"])
