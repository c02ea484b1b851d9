"""The plain loop, as most people write it; `vrambudget.measure.loops.plain` is the same in torch.

The first step differs from the second: the optimizer makes its states at its end, and there are no
outputs of an earlier step. From the third on nothing changes but how the allocator lays it out.
"""

from typing import Any

from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import no_grad
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.training.clip import clip_grad_norm
from vrambudget.training.loops.run import Run


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
            batch = next(batches)  # the last one lives until this is made
            with run.autocast():
                outputs = model(**batch)  # the last outputs live until these are there
            loss = outputs.loss
            if settings.grad_accum > 1:
                loss = mul_scalar(loss)  # divided by their number
            if not settings.keep_outputs:
                outputs = None
            run.mark("backward")
            run_backward(scaler.scale(loss))
        run.mark("optimizer_step")
        if settings.clip is not None:
            scaler.unscale(optimizer)
            clip_grad_norm(parameters)
        if optimizer is not None:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return locals()


def evaluate(run: Run) -> dict[str, Any]:
    """Run forward passes without autograd, and return what the variables hold at the end."""
    model, settings = run.model, run.settings
    model.eval()
    batches = run.batches()
    with no_grad():
        for _ in run.steps():
            run.mark("forward")
            batch = next(batches)
            with run.autocast():
                outputs = model(**batch)
            if not settings.keep_outputs:
                outputs = None
    return locals()
