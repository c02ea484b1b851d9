"""Well-known pipelines: one TOML file for each in `model_cards/pictures`.

A card has these keys; TOML has no null, in a component it is written "null".

    name = "wan2.1-14b"
    source = "https://..."                where the configurations were published
    extends = "..."                       another card, of which this one says what differs
    pipeline = "WanPipeline"              diffusers' class
    precision = "bf16"                    of its weights
    multiple = 16                         height and width are multiples of it
    recorded_step = 64                    at such alone, where the model's code rounds otherwise
    resolution = [480, 832]               if none is named: height, width
    frames = 81, frames_step = 4          if none are named; they are 4 n + 1
    tokens = [512]                        of a prompt, by tokenizer
    lora_targets = [...]                  what diffusers' training script adapts

    [components.NAME]                     class = "diffusers.X", and its configuration
    [options]                             of the pipeline's class
"""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from vrambudget.config.cards import card_text, cards_folder, picture_names
from vrambudget.errors import NotModelledError, VramBudgetError, did_you_mean

_REHEARSED = {
    r"(ltx-?2|flux\.?-?2|mochi)([-.\w]*)": "python generate.py",
}
"""Names that people ask for and that were not recorded: what a rehearsal of them runs."""
_USUAL: dict[str, Any] = {"resolution": [1024, 1024], "frames": 0, "frames_step": 0, "options": {}}


@cache
def picture_name(word: str) -> str | None:
    """Return the card that a name or a hub id means, None if it means none."""
    plain = word.lower().replace("_", "-")
    known = picture_names()
    if plain in known:
        return plain
    if "/" not in word:
        _refuse(word, plain.removesuffix(".pt"))
        return None
    return next((n for n in known if plain in map(str.lower, card(n)["repositories"])), None)


def _refuse(word: str, plain: str) -> None:
    """Raise NotModelledError for a name that was not recorded, unless it is a file's."""
    for names, command in _REHEARSED.items():
        if re.fullmatch(names, plain) and not Path(word).is_dir():
            raise NotModelledError(
                f"{word} was not recorded, so it is not known by name",
                hint=f"`vrambudget rehearse --gpu GPU -- {command.format(plain)}` runs its code",
            )


@cache
def card(name: str) -> dict[str, Any]:
    """Return a card, with what it says by another one. Raises VramBudgetError."""
    path = cards_folder() / "pictures" / f"{name}.toml"
    if name not in picture_names():
        raise VramBudgetError(
            f"no pipeline is known as {name!r}", hint=did_you_mean(name, picture_names())
        )
    own: dict[str, Any] = tomllib.loads(card_text(path))
    base = card(own["extends"]) if "extends" in own else _USUAL
    components = dict(base.get("components", {}))
    for part, keys in own.get("components", {}).items():
        components[part] = components.get(part, {}) | keys
    return {**base, **own, "components": components}


def program_name(own: dict[str, Any], component: str) -> str:
    """Return the name of a component's program: its own, or the pipeline's that it is first of."""
    keys = own["components"][component]
    if "program" in keys:
        return str(keys["program"])
    while "extends" in own and card(own["extends"])["components"].get(component) == keys:
        own = card(own["extends"])
    return f"{own['name']}.{component}"
