"""TRL's DPOTrainer itself; `vrambudget.training.loops.dpo` models it."""

from typing import Any

from vrambudget.measure.loops import trainer
from vrambudget.measure.loops.run import MeasuredRun
from vrambudget.measure.loops.trl_parts import END, WORD, Rows, rows_of, trl_arguments


def train(run: MeasuredRun) -> dict[str, Any]:
    """Train, and return what is left of it."""
    return trainer.trained(run, _trainer)


def evaluate(run: MeasuredRun) -> dict[str, Any]:
    """Run `DPOTrainer.evaluate`."""
    return trainer.evaluated(run, _trainer)


def _trainer(run: MeasuredRun, folder: str) -> Any:
    from trl import DPOConfig, DPOTrainer  # noqa: PLC0415 - other loops need none

    precomputes = bool(run.settings.get("precompute_ref_log_probs"))
    has_adapters = bool(run.settings.get("lora_rank"))
    return DPOTrainer(
        model=run.model,
        ref_model=None if precomputes or has_adapters else run.build().eval(),
        args=DPOConfig(**trl_arguments(run, folder), precompute_ref_log_probs=precomputes),
        **rows_of(run, _row),
    )


def _row(prompt: int, completion: int, second: int) -> Rows:
    """Return a prompt and two answers, each with its end."""
    chosen, rejected = (
        "".join(f" {word}" for word in [*[WORD] * (count - 1), END])
        for count in (completion, second)
    )
    return {"prompt": " ".join([WORD] * prompt), "chosen": chosen, "rejected": rejected}
