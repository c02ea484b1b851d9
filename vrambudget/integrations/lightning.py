"""A thin callback for Lightning: it predicts before the first step and then measures.

    Trainer(callbacks=[lightning_callback(batch=8, block=1024)])

It expects a model of transformers as the LightningModule's `self.model`, or under the given name;
precision, clipping, accumulation, the optimizer and the model's mode are those that are there, and
Lightning's own loop is modelled.

Not modelled: several optimizers; what training_step keeps on the module.
"""

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from vrambudget.config.gpus import Gpu
from vrambudget.errors import VramBudgetError
from vrambudget.integrations.watch import Reading, Watch

_PRECISIONS = {"bf16-mixed": "amp-bf16", "16-mixed": "amp-fp16"}


def lightning_callback(
    *,
    batch: int,
    block: int | None = None,
    model: str = "model",
    gpu: str | Gpu | None = "auto",
    strict: bool = False,
    record: str | Path | None = None,
    **fields: Any,
) -> Any:
    """Return a Callback; `model` names the module's attribute, `fields` are those of `Job`."""
    watch = Watch(gpu=gpu, strict=strict, record=record, fields=fields)

    def read(trainer: Any, module: Any) -> Reading:
        live = getattr(module, model, None)
        if live is None:
            raise VramBudgetError(
                f"the LightningModule has no attribute {model!r}",
                hint="name the attribute that holds it: lightning_callback(model=...)",
            )
        mode = "train" if live.training else "eval"  # Lightning leaves a model's mode as it is
        fields = {**_fields(trainer), "batch": batch, "block": block, "model_mode": mode}
        validates = trainer.enable_validation and "eval_batches" not in fields
        not_modelled = ("validation between steps, without eval_batches",) if validates else ()
        return Reading(live, next(iter(trainer.optimizers), None), fields, not_modelled)

    class VramBudgetLightningCallback(_callback_class()):  # type: ignore[misc] # known when used
        """Predicts when training starts, measures after three steps."""

        budget = property(lambda _: watch.budget)
        measured = property(lambda _: watch.measured)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Predict; warn, or raise if strict."""
            watch.begin(partial(read, trainer, pl_module))

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            """Measure once, after the third step."""
            watch.step(trainer.global_step)

    return VramBudgetLightningCallback()


def _callback_class() -> Any:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(name).Callback
        except ImportError:
            continue
    raise VramBudgetError("Lightning is not installed", hint="pip install lightning")


def _fields(trainer: Any) -> dict[str, Any]:
    """Return the job's fields that Lightning's Trainer knows."""
    fields: dict[str, Any] = {
        "grad_accum": trainer.accumulate_grad_batches,
        "clip": trainer.gradient_clip_val or None,
        "loop": "lightning",
    }
    if (precision := _PRECISIONS.get(str(trainer.precision))) is not None:
        fields["precision"] = precision
    return fields
