"""VramBudgetCallback: Hugging Face's Trainer reports before the first step whether training fits.

    trainer = Trainer(..., callbacks=[VramBudgetCallback(record="measured.jsonl")])

When training begins it predicts from the model, the optimizer and TrainingArguments, and warns if
the job does not fit, or raises DoesNotFit (`strict`). After the third step it logs the measurement
next to the prediction, and appends both to a file that `vrambudget validate` reads.

Sequences are as long as the dataset's if these all have one length; otherwise pass `block`, the
length of the longest. Peak counters are reset when training begins.

It is not a subclass of TrainerCallback, because that would import transformers: the Trainer calls
methods by name, and all that are not defined here do nothing.

Not modelled: what the Trainer itself keeps on the GPU (five scalars; with accumulation, the
prefetched batches); evaluation between steps.
"""

from itertools import islice
from pathlib import Path
from typing import Any

from vrambudget.budget import Budget
from vrambudget.config.gpus import Gpu
from vrambudget.errors import VramBudgetError
from vrambudget.integrations.watch import Watch

_ROWS_LOOKED_AT = 256


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
        self.watch = Watch(gpu=gpu, strict=strict, record=record)

    def __getattr__(self, name: str) -> Any:
        """Return a method that does nothing, for the events that are not handled here."""
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def budget(self) -> Budget | None:
        """The prediction, once training has begun."""
        return self.watch.budget

    @property
    def measured(self) -> dict[str, Any] | None:
        """The peaks after three steps on a GPU, as a record has them."""
        return self.watch.measured

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Predict; warn, or raise if strict."""
        del state, control
        block = self.block or _length(given.get("train_dataloader"))
        fields = {**_fields(args), "block": block, **self.fields}
        self.watch.begin(given["model"], given.get("optimizer"), fields)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure once, after the third step."""
        del args, control, given
        self.watch.step(state.global_step)


def _nothing(*args: Any, **given: Any) -> None:
    del args, given


def _fields(args: Any) -> dict[str, Any]:
    """Return the job's fields that TrainingArguments have."""
    fields: dict[str, Any] = {
        "batch": args.per_device_train_batch_size,
        "grad_accum": args.gradient_accumulation_steps,
        "clip": args.max_grad_norm or None,
        "forward_returns": "loss",  # compute_loss() returns the loss alone
    }
    if args.bf16 or args.fp16:
        fields["precision"] = "amp-bf16" if args.bf16 else "amp-fp16"
    return fields


def _length(loader: Any) -> int:
    """Return the length of all rows of the dataset. Raises VramBudgetError if they differ."""
    dataset = getattr(loader, "dataset", None)
    rows = islice(dataset, _ROWS_LOOKED_AT) if dataset is not None else ()
    lengths = {len(row["input_ids"]) for row in rows if "input_ids" in row}
    if len(lengths) != 1:
        raise VramBudgetError(
            "the dataset's sequences do not all have one length",
            hint="pass VramBudgetCallback(block=...): the length of the longest",
        )
    return lengths.pop()
