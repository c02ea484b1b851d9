"""What a GPU can do with a pipeline: how to train it there, and how to generate with it.

Of a training, or a generation, the recipes stand in the order of what they give up; the first that
fits is the one to use. Each is a command.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from vrambudget.config.gpus import Gpu
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.pictures.budget import picture_budget
from vrambudget.pictures.cards import card
from vrambudget.pictures.job import picture_job
from vrambudget.planning.forked import forked


class _Way(NamedTuple):
    """Options, and what they give up."""

    options: dict[str, Any]
    gives_up: str


_TRAINING = (
    _Way({"train": "full", "checkpointing": True, "precision": "bf16"}, "nothing: all weights"),
    _Way({"train": "lora"}, "adapters alone"),
    _Way({"train": "lora", "checkpointing": True}, "a quarter of the speed"),
    _Way({"train": "lora", "checkpointing": True, "base": "fp8"}, "half of the base's digits"),
    _Way({"train": "lora", "checkpointing": True, "base": "nf4"}, "three quarters of them"),
    _Way(
        {"train": "lora", "checkpointing": True, "base": "fp8", "swap": 35},
        "half of the base's digits, and the time to move 35 blocks",
    ),
)
_GENERATION = (
    _Way({}, "nothing"),
    _Way({"offload": "model"}, "the time to move each component"),
    _Way({"base": "fp8", "offload": "model"}, "half of the base's digits, and that time"),
    _Way({"base": "nf4", "offload": "model"}, "three quarters of them, and that time"),
    _Way({"offload": "sequential"}, "most of the speed"),
)
_WAYS = {"train": _TRAINING, "generate": _GENERATION}


@dataclass(frozen=True, slots=True)
class PictureRecipe:
    """One way, and what it takes."""

    goal: str
    command: str
    fits: bool | None
    peak_bytes: int
    phase: str
    gives_up: str


class _Sizes(NamedTuple):
    """What is asked for, besides a way."""

    name: str
    gpu: Gpu
    word: str  # for the GPU
    resolution: str | None
    frames: int | None

    def command(self, options: dict[str, Any]) -> str:
        """Return the command of a way."""
        given = {**options, "resolution": self.resolution, "frames": self.frames, "gpu": self.word}
        words = (
            f"--{key}" if value is True else f"--{key} {value}"
            for key, value in given.items()
            if value is not None
        )
        return f"vrambudget {self.name} {' '.join(words)}"


def recipes(
    name: str, gpu: Gpu, *, word: str, resolution: str | None, frames: int | None
) -> list[PictureRecipe]:
    """Return how to train and to generate on a GPU; of each goal, up to the first that fits."""
    asked = _Sizes(name, gpu, word, resolution, frames)
    ways = [(goal, way) for goal, of in _WAYS.items() for way in of]
    done = dict(forked([partial(_tried, n, *way, asked) for n, way in enumerate(ways)]))
    found: list[PictureRecipe] = []
    for n, (goal, way) in enumerate(ways):
        if not any(each.goal == goal and each.fits for each in found):
            recipe = done[n] if n in done else _tried(n, goal, way, asked)[1]
            found += [recipe] if recipe else []
    if not found:
        raise NotModelledError(f"no way to train {name} or to generate with it was recorded")
    return found


def _tried(n: int, goal: str, way: _Way, asked: _Sizes) -> tuple[int, PictureRecipe | None]:
    """Return the number of a way, and what it takes: None where it was not recorded."""
    options, gives_up = way
    try:
        own = {"resolution": asked.resolution, "frames": asked.frames, **options}
        found = picture_budget(picture_job(asked.name, **own), asked.gpu)
    except VramBudgetError as error:
        if isinstance(error, NotModelledError) or "swap" in options:
            return n, None  # not recorded, or fewer blocks: another way may do
        raise
    device = found.budget.device
    assert device is not None  # noqa: S101 - a GPU was named
    phase = found.budget.peak.phase
    command, fits = asked.command(options), found.budget.fits
    return n, PictureRecipe(goal, command, fits, device.peak_bytes, phase, gives_up)


def title(name: str) -> str:
    """Return what a pipeline is called."""
    return str(card(name)["title"])
