"""A loop with accelerate, as transformers' examples without Trainer have it.

Outputs come back as float32 and are held until the next forward has its own. The loader hands over
batches on the device. An evaluation keeps each batch's loss, repeated for its rows, and uses the
script's variables.

Source: accelerate 1.15 (see `vrambudget.training.accelerated`); transformers' examples
run_clm_no_trainer.py. `vrambudget.measure.loops.accelerate` is the same in torch.
"""

from typing import Any

from vrambudget.dtypes import float32
from vrambudget.engine.context import no_grad
from vrambudget.ops.creation import made
from vrambudget.ops.shape import cat
from vrambudget.training.accelerated import accelerated, backward, held_by_loader
from vrambudget.training.clip import clip_grad_norm
from vrambudget.training.loops.run import Run


def train(run: Run) -> dict[str, Any]:  # noqa: C901 - one script, and its variables
    """Train, and return what the loop's variables hold at the end."""
    outputs: Any
    optimizer: Any
    model, settings = run.model, run.settings
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = run.make_optimizer(parameters) if run.engine is None else None
    scaler = run.make_scaler()
    clips = settings.clip is not None and run.engine is None  # an engine clips by itself
    batches = held_by_loader(run.batches())
    for step in run.steps():
        if run.evaluates_before(step):
            model.eval()
            losses, gathered = list[Any](), list[Any]()
            eval_batches = run.eval_batches()
            for _ in run.eval_steps():
                run.mark("evaluation")
                batch = next(eval_batches)
                if not settings.keep_outputs:
                    outputs = None
                with no_grad():
                    outputs = accelerated(run, **batch)
                loss = outputs.loss
                losses.append(made("repeat", (settings.eval_batch or 1,), float32))
                if settings.eval_gather:
                    gathered.append(outputs.logits)
            all_losses = cat(losses, 0)
            eval_loss = made("mean", (), float32)
            predictions: Any = cat(gathered, 0) if gathered else None
            if not settings.keep_outputs:
                gathered, predictions = [], None
        model.train(mode=settings.model_mode == "train")
        for _ in run.micro_batches():
            run.mark("forward")
            if not settings.keep_outputs:
                outputs = None
            batch = next(batches)
            outputs = accelerated(run, **batch)
            loss = outputs.loss
            if settings.forward_returns == "loss":
                outputs = None
            run.mark("backward")
            backward(run, loss, scaler)
        run.mark("optimizer_step")
        if clips:
            scaler.unscale(optimizer)
            clip_grad_norm(parameters)
        if optimizer is not None:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return locals()


def evaluate(run: Run) -> dict[str, Any]:
    """Run forward passes without autograd, and return what the variables hold at the end."""
    outputs: Any
    model, settings = run.model, run.settings
    model.eval()
    batches = run.batches()
    for _ in run.steps():
        run.mark("forward")
        batch = next(batches)
        with no_grad():
            outputs = accelerated(run, **batch)
        if not settings.keep_outputs:
            outputs = None
    return locals()
