"""The plain loop, as most people write it; `vrambudget.training.loops.plain` models it."""

from typing import Any

import torch

from vrambudget.measure.loops.run import MeasuredRun


def train(run: MeasuredRun) -> dict[str, Any]:  # noqa: C901, PLR0912 - one script, and its variables
    """Train, and return what the loop's variables hold at the end."""
    model, settings = run.model, run.settings
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = run.make_optimizer(parameters)
    scaler = run.make_scaler()
    batches, eval_batches = run.batches(), run.eval_batches()
    losses: Any = []
    for step in run.steps():
        if settings.get("empty_cache"):
            torch.cuda.empty_cache()
        if run.evaluates_before(step):
            model.eval()
            gathered: Any = []
            with torch.no_grad():
                for _ in run.eval_steps():
                    run.mark("evaluation")
                    if not settings.get("keep_outputs", True):
                        outputs = None
                    batch = next(eval_batches)
                    with run.autocast():
                        outputs = model(**batch)
                    if settings.get("eval_gather"):
                        gathered.append(outputs["logits"])
            if settings.get("eval_gather"):
                predictions: Any = torch.cat(gathered, 0)
            if not settings.get("keep_outputs", True):
                gathered = predictions = None
        model.train(mode=settings.get("model_mode", "train") == "train")
        for _ in run.micro_batches():
            run.mark("forward")
            if not settings.get("keep_outputs", True):
                outputs = None
            batch = next(batches)
            with run.autocast():
                outputs = model(**run.given(batch))
                loss = run.loss_of(outputs, batch)
            if settings.get("grad_accum", 1) > 1:
                loss = loss / settings["grad_accum"]
            if run.forward_returns == "loss":
                outputs = None
            if settings.get("zero_grad") == "late" and optimizer is not None:
                optimizer.zero_grad(set_to_none=True)
            run.mark("backward")
            scaler.scale(loss).backward(retain_graph=settings.get("keep_losses") == "graphs")
            if settings.get("keep_losses", "none") != "none":
                losses.append(loss)
        if settings.get("drop_before_step"):
            del outputs, loss
        run.mark("optimizer_step")
        _step(run, optimizer, scaler, parameters)
    return locals()


def _step(run: MeasuredRun, optimizer: Any, scaler: Any, parameters: list[Any]) -> None:
    """Clip, step, and zero the gradients."""
    if run.settings.get("clip"):
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, run.settings["clip"])
    if optimizer is not None:
        scaler.step(optimizer)
        scaler.update()
        if run.settings.get("zero_grad") != "late":
            optimizer.zero_grad(set_to_none=run.settings.get("zero_grad", "none") == "none")


def evaluate(run: MeasuredRun) -> dict[str, Any]:
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
