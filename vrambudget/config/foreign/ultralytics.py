"""ultralytics' words: `model=yolo11x.pt imgsz=640 batch=16`, and the args.yaml of its runs.

Source: ultralytics/cfg/default.yaml; engine/trainer.py (build_optimizer: auto is AdamW, or from
10,000 iterations on MuSGD, which keeps as much for each weight).
"""

from collections.abc import Sequence
from typing import Any

from vrambudget.errors import VramBudgetError
from vrambudget.units import whole_number

_COMMAND = {"yolo", "detect", "train"}


def model_first(words: Sequence[str]) -> Sequence[str]:
    """Return `yolo train model=NAME.pt key=value` as NAME and the rest, behind a command's name.

    Raises VramBudgetError for a batch that is no number.
    """
    model = next(word for word in words if word.startswith("model="))
    name = model.removeprefix("model=").removesuffix(".yaml")
    rest = [word for word in words if word not in {model, *_COMMAND}]
    for word in rest:
        if word.startswith("batch=") and whole_number(word.removeprefix("batch=")) is None:
            raise VramBudgetError(
                f"{word} lets ultralytics look for a batch",
                hint="leave it out: `vrambudget fit` with the same words finds the largest",
            )
    first = 1 if rest and not rest[0].startswith("-") and "=" not in rest[0] else 0
    return [*rest[:first], name, *rest[first:]]


def accumulation(batch: Any, per_step: int) -> dict[str, int]:
    """Return how many batches ultralytics' trainer adds up: gradients of 64 pictures, or so.

    Source: ultralytics/engine/trainer.py (BaseTrainer._setup_train, `accumulate`).
    """
    if not per_step or not isinstance(batch, int):
        return {}
    return {"grad_accum": max(round(per_step / batch), 1)}
