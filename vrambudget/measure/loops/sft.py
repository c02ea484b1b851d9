"""TRL's SFTTrainer itself; `vrambudget.training.loops.sft` models it."""

from typing import Any

from vrambudget.measure.loops import trainer
from vrambudget.measure.loops.run import MeasuredRun
from vrambudget.measure.loops.trl_parts import Rows, rows_of, trl_arguments


def train(run: MeasuredRun) -> dict[str, Any]:
    """Train, and return what is left of it."""
    return trainer.trained(run, _trainer)


def evaluate(run: MeasuredRun) -> dict[str, Any]:
    """Run `SFTTrainer.evaluate`."""
    return trainer.evaluated(run, _trainer)


def _trainer(run: MeasuredRun, folder: str) -> Any:
    from trl import SFTConfig, SFTTrainer  # noqa: PLC0415 - other loops need none

    return SFTTrainer(
        model=run.model,
        args=SFTConfig(**trl_arguments(run, folder)),
        **rows_of(run, _row),
    )


def _row(prompt: int, completion: int, _second: int) -> Rows:
    """Return a row: tokens, and labels of the completion's."""
    tokens = [0] * (prompt + completion)
    return {"input_ids": tokens, "labels": [-100] * prompt + [0] * completion}
