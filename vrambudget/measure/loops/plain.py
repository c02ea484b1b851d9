"""The plain loop, as most people write it; `vrambudget.training.loops.plain` counts it."""

from typing import Any

import torch

from vrambudget.measure.loops.run import Run


def train(run: Run) -> dict[str, Any]:
    """Train, and return what the loop's variables hold at the end."""
    model, settings = run.model, run.settings
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = run.make_optimizer(parameters)
    scaler = run.make_scaler()
    batches = run.batches()
    for _ in run.steps():
        for _ in run.micro_batches():
            run.mark("forward")
            batch = next(batches)
            with run.autocast():
                outputs = model(**batch)
            loss = outputs["loss"]
            if settings.get("grad_accum", 1) > 1:
                loss = loss / settings["grad_accum"]
            if not settings.get("keep_outputs", True):
                outputs = None
            run.mark("backward")
            scaler.scale(loss).backward()
        run.mark("optimizer_step")
        if settings.get("clip"):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, settings["clip"])
        if optimizer is not None:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
    return locals()


def evaluate(run: Run) -> dict[str, Any]:
    """Run forward passes without autograd, and return what the variables hold at the end."""
    model, settings = run.model, run.settings
    model.eval()
    batches = run.batches()
    with torch.no_grad():
        for _ in run.steps():
            run.mark("forward")
            batch = next(batches)
            with run.autocast():
                outputs = model(**batch)
            outputs["loss"].item()
            if not settings.get("keep_outputs", True):
                outputs = None
    return locals()
