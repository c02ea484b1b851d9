"""VramBudgetCallback: Hugging Face's Trainer reports before the first step whether training fits.

    trainer = Trainer(..., callbacks=[VramBudgetCallback(record="measured.jsonl")])

When training begins it predicts from the model, the optimizer, TrainingArguments and the first
batches, and warns if the job does not fit, or raises DoesNotFit (`strict`). What cannot be
predicted is a warning too, with the command that rehearses the script. After the third step it
logs the measurement next to the prediction, and appends both to a file that `vrambudget validate`
reads; `log_history` has both. Peak counters are reset when training begins.

It is not a subclass of TrainerCallback, because that would import transformers: the Trainer calls
methods by name, and all that are not defined here do nothing.

Not modelled: several evaluation sets; evaluation rows that are longer than those of training.
"""

from functools import partial
from pathlib import Path
from typing import Any

from vrambudget.budget import Budget
from vrambudget.config.gpus import Gpu
from vrambudget.integrations.live_trainer import read_trainer
from vrambudget.integrations.watch import Watch


class VramBudgetCallback:
    """What the Trainer calls; `fields` are those of `Job` and override TrainingArguments."""

    def __init__(
        self,
        *,
        block: int | None = None,
        gpu: str | Gpu | None = "auto",
        strict: bool = False,
        record: str | Path | None = None,
        **fields: Any,
    ) -> None:
        self.block, self.fields = block, fields
        self.watch = Watch(gpu=gpu, strict=strict, record=record, fields=fields)

    def __getattr__(self, name: str) -> Any:
        """Return a method that does nothing, for the events that are not handled here."""
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def budget(self) -> Budget | None:
        """The prediction, once training has begun; None where it could not be made."""
        return self.watch.budget

    @property
    def measured(self) -> dict[str, Any] | None:
        """The peaks after three steps on a GPU, as a record has them."""
        return self.watch.measured

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Predict; warn, or raise if strict."""
        del control
        read = partial(read_trainer, args, given, block=self.block)
        _log(state, self.watch.begin(read))

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure once, after the third step."""
        del args, control, given
        _log(state, self.watch.step(state.global_step))


def _nothing(*args: Any, **given: Any) -> None:
    del args, given


def _log(state: Any, entry: dict[str, int]) -> None:
    """Add an entry to the Trainer's log, which is saved with its checkpoints."""
    if entry:
        state.log_history.append({**entry, "step": state.global_step})
