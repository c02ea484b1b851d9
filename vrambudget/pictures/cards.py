"""Well-known pipelines: one TOML file for each in `model_cards/pictures`.

A card has these keys; TOML has no null, in a component it is written "null".

    name = "wan2.1-14b"
    source = "https://..."                where the configurations were published
    extends = "..."                       another card, of which this one says what differs
    pipeline = "WanPipeline"              diffusers' class
    precision = "bf16"                    of its weights
    multiple = 16                         height and width are multiples of it
    pictures = 1                          recorded so many at once alone: its code loops over them
    recorded_tall = true                  recorded at a tall picture, too: its code compares sides
    recorded_step = 64                    at such alone, where the model's code rounds otherwise
    resolution = [480, 832]               if none is named: height, width
    frames = 81, frames_step = 4          if none are named; they are 4 n + 1
    tokens = [512]                        of a prompt, by tokenizer
    trains_at = {...}                     sizes of the denoiser's program as the script has them
    lora_targets = [...]                  what diffusers' training script adapts

    [components.NAME]                     class = "diffusers.X", and its configuration
    [options]                             of the pipeline's class
    [call]                                arguments of a generation, as its authors give them
"""

import os
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from vrambudget.config.cards import (
    card_names,
    card_text,
    cards_folder,
    picture_names,
    plain_name,
)
from vrambudget.config.config_file import read_config
from vrambudget.errors import NotModelledError, VramBudgetError, did_you_mean

_NOT_RECORDED = re.compile(r"(z-?image|ltx-?2|mochi|hidream|sana)[-.\w]*")  # what people ask for
_INDEX = "model_index.json"
_USUAL: dict[str, Any] = {"resolution": [1024, 1024], "frames": 0, "frames_step": 0, "options": {}}


def picture_name(word: str) -> str | None:
    """Return the model card that a name, a hub id or a pipeline's folder means, or None.

    A hub id's last part is a name, too; signs between letters do not matter: sd15, FLUX.1-dev.
    """
    plain = word.lower().replace("_", "-")
    if plain in picture_names():
        return plain
    if os.path.exists(word):  # noqa: PTH110 - of any text; a file, or a folder of one's own
        return _of_files(Path(word))
    if plain in card_names():
        return None  # another kind of model: no pipeline's card is read to find that out
    wanted = _bare(word)
    for name in picture_names():
        ids = card(name)["repositories"]
        own = ids if "/" in word else [name, *(n.partition("/")[2] for n in ids)]
        if wanted in map(_bare, own):
            return name
    if _NOT_RECORDED.fullmatch(plain.removesuffix(".pt")) and not any(
        _bare(name).startswith(wanted) for name in picture_names()
    ):
        raise NotModelledError(
            f"{word} was not recorded, so it is not known by name",
            hint="`vrambudget rehearse --gpu GPU -- python generate.py` runs its code",
        )
    return None


def _bare(word: str) -> str:
    return plain_name(word).replace(".", "")


def _of_files(path: Path) -> str | None:
    """Return the model card of a pipeline's folder or model_index.json, None for other files.

    Raises NotModelledError for a pipeline that no card describes, or several, and for a component.
    """
    index = path / _INDEX if (path / _INDEX).is_file() else path
    own = _keys(index)
    if (kind := own.get("_class_name")) is None and index.name != _INDEX:
        return None  # of another kind of model: no card is read
    known = {n: card(n) for n in picture_names()}
    of_class = [n for n, c in known.items() if c["pipeline"] == kind]
    found = [n for n in of_class if _is_of(index.parent, own, known[n]["components"])]
    if len(found) == 1:
        return found[0]
    problem = f"no {kind} of this size was recorded"
    if found:
        problem = f"no component's config.json beside it says which it is: {' or '.join(found)}"
    elif index.name != _INDEX:
        of_class = [n for n, c in known.items() if f"'diffusers.{kind}'" in str(c["components"])]
        if not of_class:
            return None
        problem = f"{kind} is one component of a pipeline; --only estimates one component's call"
    hint = f"name the pipeline: vrambudget {', '.join(of_class or known)}"
    raise NotModelledError(problem, where=str(index), hint=hint)


def _is_of(folder: Path, index: dict[str, Any], components: dict[str, Any]) -> bool:
    """Return whether a pipeline has a card's denoisers, as large, as far as its folder says."""
    named = {n for n in components if n.startswith(("transformer", "unet"))}
    if named != {n for n, of in index.items() if n.startswith(("transformer", "unet")) and all(of)}:
        return False
    stated = [(components[n], _keys(folder / n / "config.json")) for n in named]
    return all(own.get(k, v) in (v, None) for keys, own in stated for k, v in keys.items())


def _keys(path: Path) -> dict[str, Any]:
    """Return a configuration's keys, none where there is no configuration."""
    try:
        return read_config(path)[0]
    except VramBudgetError:
        return {}  # who reads it as another kind of model says why


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
