"""VramBudgetCallback: Hugging Face's Trainer says before the first step whether training fits.

    trainer = Trainer(..., callbacks=[VramBudgetCallback(record="measured.jsonl")])

At the beginning it predicts from the model, the optimizer and TrainingArguments, and warns where
the job does not fit, or raises DoesNotFit (`strict`). After the third step it logs what was
measured beside what was predicted, and appends both to a file that `vrambudget validate` reads.

Sequences are as long as the dataset's, where they are all of one length; else say `block`: the
longest that will come. Peak counters are reset when training begins.

It is no subclass of TrainerCallback, for which transformers would have to be imported: the Trainer
calls methods by name, and every other one does nothing.

Not modelled: what the Trainer itself keeps on the card (five scalars; with accumulation, the
batches that it fetches ahead); evaluation between steps.
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
    """What the Trainer calls; `fields` are those of `Job` and win over TrainingArguments."""

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
        """Return a method that does nothing for the events that are none of ours."""
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
        """Predict; warn, or raise where strict."""
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
    """Return what TrainingArguments say of a job."""
    fields: dict[str, Any] = {
        "batch": args.per_device_train_batch_size,
        "grad_accum": args.gradient_accumulation_steps,
        "clip": args.max_grad_norm or None,
        "keep_outputs": False,  # compute_loss() returns the loss alone
    }
    if args.bf16 or args.fp16:
        fields["precision"] = "amp-bf16" if args.bf16 else "amp-fp16"
    return fields


def _length(loader: Any) -> int:
    """Return the length that all rows of the dataset have. Raises VramBudgetError without one."""
    dataset = getattr(loader, "dataset", None)
    rows = islice(dataset, _ROWS_LOOKED_AT) if dataset is not None else ()
    lengths = {len(row["input_ids"]) for row in rows if "input_ids" in row}
    if len(lengths) != 1:
        raise VramBudgetError(
            "the dataset's sequences are not of one length",
            hint="say VramBudgetCallback(block=...): the longest that will come",
        )
    return lengths.pop()
