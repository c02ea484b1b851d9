"""One colour for each part of a budget, in every picture; for light and for dark backgrounds.

Neighbours in a stack differ in lightness too, so that they differ even without hue.
"""

from collections.abc import Sequence
from typing import NamedTuple

from vrambudget.budget import BLOCK_ROUNDING
from vrambudget.tape.events import Purpose


class Colour(NamedTuple):
    """Hexadecimal RGB."""

    light: str
    dark: str


COLOURS: dict[str, Colour] = {
    Purpose.WEIGHTS: Colour("#2b5797", "#5b8fd6"),
    Purpose.OPTIMIZER_STATES: Colour("#8fb3de", "#2f5a93"),
    Purpose.GRADIENTS: Colour("#d97a0b", "#f0a04b"),
    Purpose.AUTOCAST_COPIES: Colour("#c3a3dc", "#7a4fa3"),
    Purpose.ACTIVATIONS: Colour("#3fa583", "#4cc39b"),
    Purpose.KV_CACHE: Colour("#6f9e3c", "#86b84f"),
    Purpose.GATHERED: Colour("#4f6f8f", "#7f9fbf"),
    Purpose.COMMUNICATION: Colour("#d6a5b8", "#a8607c"),
    Purpose.LOGITS_AND_LOSS: Colour("#b22f3f", "#d94c58"),
    Purpose.TEMPORARIES: Colour("#f0c93f", "#f2d461"),
    Purpose.WORKSPACES: Colour("#7d5f43", "#a98763"),
    Purpose.INPUTS: Colour("#45b1c2", "#3c9bab"),
    BLOCK_ROUNDING: Colour("#a3a9b2", "#70767f"),
}
"""By part, from the bottom of a stack up: what stays below what comes and goes."""

OTHERS: dict[str, Colour] = {
    "other": Colour("#8a7f9c", "#8d829f"),
    "cached": Colour("#d3d7dd", "#434852"),
    "CUDA context": Colour("#b9bec7", "#5b616b"),
}


def css(colours: Sequence[tuple[str, Colour]]) -> str:
    """Return custom properties: dark ones where the reader's system is dark."""
    light = "".join(f"--{slug(name)}:{colour.light};" for name, colour in colours)
    dark = "".join(f"--{slug(name)}:{colour.dark};" for name, colour in colours)
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"


def stacked(parts: Sequence[str]) -> list[str]:
    """Return parts in stacking order."""
    return [name for name in (*COLOURS, *OTHERS) if name in parts]


def slug(name: str) -> str:
    """Return a part's name as CSS can have it."""
    return name.lower().replace(" ", "-")
