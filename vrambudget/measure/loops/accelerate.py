"""A loop with accelerate itself; `vrambudget.training.loops.accelerate` models it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from vrambudget.measure.loops.run import MeasuredRun

_MIXED = {"amp-bf16": "bf16", "amp-fp16": "fp16"}


def train(run: MeasuredRun) -> dict[str, Any]:  # noqa: C901 - one script, and its variables
    """Train, and return what the loop's variables hold at the end."""
    settings, accelerator = run.settings, _accelerator(run)
    times, keeps = settings.get("grad_accum", 1), settings.get("keep_outputs", True)
    parameters = [p for p in run.model.parameters() if p.requires_grad]
    model, optimizer = accelerator.prepare(run.model, run.make_optimizer(parameters))
    batches = _batches(run, accelerator, settings["batch"], settings.get("steps", 3) * times)
    for step in run.steps():
        if run.evaluates_before(step):
            model.eval()
            losses, gathered = list[Any](), list[Any]()
            size = settings.get("eval_batch", settings["batch"])
            eval_batches = _batches(run, accelerator, size, settings["eval_batches"])
            for batch in eval_batches:
                run.mark("evaluation")
                if not keeps:
                    outputs = None
                with torch.no_grad():
                    outputs = model(**batch)
                loss = outputs["loss"]
                losses.append(accelerator.gather_for_metrics(loss.repeat(size)))
                if settings.get("eval_gather"):
                    gathered.append(accelerator.gather_for_metrics(outputs["logits"]))
            all_losses = torch.cat(losses)
            eval_loss = torch.mean(all_losses)
            predictions: Any = torch.cat(gathered, 0) if gathered else None
            if not keeps:
                gathered, predictions = [], None
        model.train(mode=settings.get("model_mode", "train") == "train")
        for _ in run.micro_batches():
            run.mark("forward")
            if not keeps:
                outputs = None
            batch = next(batches)
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs["loss"]
                if run.forward_returns == "loss":
                    outputs = None
                run.mark("backward")
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    run.mark("optimizer_step")
                    if settings.get("clip"):
                        accelerator.clip_grad_norm_(parameters, settings["clip"])
                optimizer.step()
                optimizer.zero_grad()
    return locals()


def evaluate(run: MeasuredRun) -> dict[str, Any]:
    """Run forward passes without autograd, and return what the variables hold at the end."""
    settings, accelerator = run.settings, _accelerator(run)
    model = accelerator.prepare(run.model)
    model.eval()
    batches = _batches(run, accelerator, settings["batch"], settings.get("steps", 3))
    for _ in run.steps():
        run.mark("forward")
        batch = next(batches)
        with torch.no_grad():
            outputs = model(**batch)
        outputs["loss"].item()
        if not settings.get("keep_outputs", True):
            outputs = None
    return locals()


def _accelerator(run: MeasuredRun) -> Any:
    from accelerate import Accelerator  # noqa: PLC0415 - other loops need none

    return Accelerator(
        mixed_precision=_MIXED.get(run.settings.get("precision", "fp32"), "no"),
        gradient_accumulation_steps=run.settings.get("grad_accum", 1),
    )


def _batches(run: MeasuredRun, accelerator: Any, size: int, count: int) -> Iterator[dict[str, Any]]:
    """Return a prepared loader's batches."""
    rows: Any = run.rows(count, size)
    loader = accelerator.prepare(DataLoader(rows, batch_size=size))
    return iter(loader)
