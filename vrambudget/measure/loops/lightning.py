"""Lightning's Trainer itself; `vrambudget.training.loops.lightning` models it."""

import tempfile
from typing import Any

import torch
from torch.utils.data import DataLoader

from vrambudget.measure.loops.run import MeasuredRun

_EVALUATED_BEFORE = 3  # as config.job has it, which these files do not import
_PRECISIONS = {"amp-bf16": "bf16-mixed", "amp-fp16": "16-mixed"}


def train(run: MeasuredRun) -> dict[str, Any]:
    """Train, and return what is left of it."""
    job = run.settings
    times, steps = job.get("grad_accum", 1), job.get("steps", 3)
    with tempfile.TemporaryDirectory(prefix="vrambudget-") as folder:
        trainer, module = _trainer(run, folder), _module(run)
        run.model.train(mode=job.get("model_mode", "train") == "train")
        loaders = [_loader(run, times * steps, job["batch"])]
        if job.get("eval_batches"):
            size = job.get("eval_batch", job["batch"])
            loaders.append(_loader(run, job["eval_batches"], size))
        trainer.fit(module, *loaders)
        return locals()


def evaluate(run: MeasuredRun) -> dict[str, Any]:
    """Run `Trainer.validate`."""
    with tempfile.TemporaryDirectory(prefix="vrambudget-") as folder:
        trainer, module = _trainer(run, folder), _module(run)
        loader = _loader(run, run.settings.get("steps", 3), run.settings["batch"])
        trainer.validate(module, loader, verbose=False)
        return locals()


def _loader(run: MeasuredRun, count: int, size: int) -> Any:
    rows: Any = run.rows(count, size)
    return DataLoader(rows, batch_size=size)


def _trainer(run: MeasuredRun, folder: str) -> Any:
    from lightning.pytorch import Trainer  # noqa: PLC0415 - other loops need none

    job = run.settings
    return Trainer(
        accelerator="gpu",
        devices=1,
        precision=_PRECISIONS.get(job.get("precision", "fp32"), "32-true"),
        max_steps=job.get("steps", 3),
        num_sanity_val_steps=job["eval_batches"] if job.get("eval_first") else 0,
        val_check_interval=(_EVALUATED_BEFORE - 1) * job.get("grad_accum", 1),
        check_val_every_n_epoch=None,
        accumulate_grad_batches=job.get("grad_accum", 1),
        gradient_clip_val=job.get("clip"),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


def _module(run: MeasuredRun) -> Any:  # noqa: C901 - a class, and what marks its phases
    from lightning.pytorch import LightningModule  # noqa: PLC0415

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = run.model

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            run.mark("forward") if batch_idx % times else run.next_step()
            return self.model(**batch)["loss"]

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            del batch_idx
            run.mark("evaluation") if trains else run.next_step()
            return self.model(**batch)["loss"]

        def on_before_backward(self, loss: Any) -> None:
            del loss
            run.mark("backward")

        def on_after_backward(self) -> None:
            run.mark("optimizer_step")

        def on_fit_end(self) -> None:
            run.mark("step_end")

        def on_validation_end(self) -> None:
            if not trains:
                run.mark("step_end")
            elif not self.trainer.sanity_checking:  # one evaluation is enough
                self.trainer.val_check_batch = float("inf")

        def configure_optimizers(self) -> Any:
            return run.make_optimizer([p for p in self.parameters() if p.requires_grad])

    times, trains = run.settings.get("grad_accum", 1), run.settings.get("mode", "train") == "train"
    torch.set_float32_matmul_precision("highest")
    return Module()
