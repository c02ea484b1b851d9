"""nanoGPT's train.py in torch; `vrambudget.training.loops.nanogpt` models it."""

from typing import Any

import torch

from vrambudget.measure.loops.run import MeasuredRun


def train(run: MeasuredRun) -> dict[str, Any]:
    """Train, and return what the script's variables hold at the end."""
    model, settings = run.model, run.settings
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = run.make_grouped_optimizer()
    scaler = run.make_scaler()
    batches = run.batches()
    batch = next(batches)
    for step in run.steps():
        if run.evaluates_before(step):
            _estimate_loss(run)
        for _ in run.micro_batches():
            run.mark("forward")
            with run.autocast():
                logits, loss = _called(run, batch)
                loss = loss / settings.get("grad_accum", 1)
            batch = next(batches)
            run.mark("backward")
            scaler.scale(loss).backward()
        run.mark("optimizer_step")
        if settings.get("clip"):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, settings["clip"])
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    return locals()


def evaluate(run: MeasuredRun) -> dict[str, Any]:
    """Run an evaluation whose batches are the steps; what it held is gone."""
    run.model.eval()
    batches = run.batches()
    with torch.no_grad():
        for _ in run.steps():
            run.mark("forward")
            batch = next(batches)
            with run.autocast():
                logits, loss = _called(run, batch)
    return locals()


def _estimate_loss(run: MeasuredRun) -> None:
    run.model.eval()
    batches = run.eval_batches()
    with torch.no_grad():
        for _ in run.eval_steps():
            run.mark("evaluation")
            batch = next(batches)
            with run.autocast():
                logits, loss = _called(run, batch)
    run.model.train()
    del batch, logits, loss


def _called(run: MeasuredRun, batch: dict[str, Any]) -> tuple[Any, Any]:
    outputs = run.model(**batch)
    return outputs["logits"], outputs["loss"]
