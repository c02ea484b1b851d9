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

import os
import re
import tomllib
from functools import cache
from typing import Any

from vrambudget.config.cards import card_text, cards_folder, picture_names, plain_name
from vrambudget.errors import NotModelledError, VramBudgetError, did_you_mean

_NOT_RECORDED = re.compile(r"(ltx-?2|flux\.?-?2|mochi)[-.\w]*")  # what people ask for
_USUAL: dict[str, Any] = {"resolution": [1024, 1024], "frames": 0, "frames_step": 0, "options": {}}


@cache
def picture_name(word: str) -> str | None:
    """Return the card that a name or a hub id means, None if it means none.

    A hub id's last part is a name, too; signs between letters do not matter: sd15, FLUX.1-dev.
    """
    plain = word.lower().replace("_", "-")
    if plain in picture_names():
        return plain
    if os.path.exists(word):  # noqa: PTH110 - of any text; a file, or a folder of one's own
        return None
    for name in picture_names():
        ids = card(name)["repositories"]
        own = ids if "/" in word else [name, *(n.partition("/")[2] for n in ids)]
        wanted, *known = (plain_name(each).replace(".", "") for each in (word, *own))
        if wanted in known:
            return name
    if _NOT_RECORDED.fullmatch(plain.removesuffix(".pt")):
        raise NotModelledError(
            f"{word} was not recorded, so it is not known by name",
            hint="`vrambudget rehearse --gpu GPU -- python generate.py` runs its code",
        )
    return None


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
