"""What a GPU can do with a pipeline: how to train it there, and how to generate with it.

Of a training, or a generation, the recipes stand in the order of what they give up; the first that
fits is the one to use. Each is a command.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from vrambudget.config.gpus import Gpu
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.files import toml_beside
from vrambudget.pictures.budget import picture_budget
from vrambudget.pictures.cards import card
from vrambudget.pictures.job import picture_job
from vrambudget.planning.forked import forked

_WAYS = toml_beside(__file__, "pictures.toml")
"""Of each goal its ways: options, and what they give up."""


@dataclass(frozen=True, slots=True)
class PictureRecipe:
    """One way, and what it takes."""

    goal: str
    command: str
    fits: bool
    peak_bytes: int
    phase: str
    gives_up: str


class _PictureSizes(NamedTuple):
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
    asked = _PictureSizes(name, gpu, word, resolution, frames)
    done = dict(forked([partial(_of_goal, goal, asked) for goal in _WAYS]))
    found = [x for goal in _WAYS for x in done.get(goal) or _of_goal(goal, asked)[1]]
    if not found:
        raise NotModelledError(f"no way to train {name} or to generate with it was recorded")
    return found


def _of_goal(goal: str, asked: _PictureSizes) -> tuple[str, list[PictureRecipe]]:
    """Return a goal, and its ways up to the first that fits, without those not recorded."""
    found: list[PictureRecipe] = []
    for way in _WAYS[goal]:
        options = way["options"]
        own = {"resolution": asked.resolution, "frames": asked.frames, **options}
        try:
            budget = picture_budget(picture_job(asked.name, **own), asked.gpu).budget
        except VramBudgetError as error:
            if isinstance(error, NotModelledError) or "swap" in options:
                continue  # not recorded, or fewer blocks: another way may do
            raise
        device, phase = budget.device, budget.peak.phase
        assert device is not None  # noqa: S101 - a GPU was named
        command, fits = asked.command(options), bool(budget.fits)
        found.append(PictureRecipe(goal, command, fits, device.peak_bytes, phase, way["gives_up"]))
        if fits:
            break
    return goal, found


def title(name: str) -> str:
    """Return what a pipeline is called."""
    return str(card(name)["title"])
