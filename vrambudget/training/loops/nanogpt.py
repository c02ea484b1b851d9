"""nanoGPT's train.py: the next batch is fetched between forward and backward, into X and Y.

So two batches live while backward runs. The loss is divided by the number of micro-batches, be it
one; logits and loss live until the next forward has its own. An evaluation is a function: what it
holds is gone when it returns. AdamW has two groups: what has two dimensions, and the rest.

Source: github.com/karpathy/nanoGPT, train.py (get_batch, estimate_loss, the training loop) and
model.py (configure_optimizers). `vrambudget.measure.loops.nanogpt` is the same in torch.
Not modelled: both splits of an evaluation (the second does what the first did), checkpoints that
are saved, DDP.
"""

from typing import Any

from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import no_grad
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.training.loops.run import Run


def train(run: Run) -> dict[str, Any]:
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
                loss = mul_scalar(loss)  # divided by their number, be it one
            batch = next(batches)
            run.mark("backward")
            run_backward(scaler.scale(loss))
        run.mark("optimizer_step")
        if settings.clip is not None:
            scaler.unscale(optimizer)
            run.clip(parameters)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return locals()


def evaluate(run: Run) -> dict[str, Any]:
    """Run an evaluation whose batches are the steps; what it held is gone."""
    run.model.eval()
    batches = run.batches()
    with no_grad():
        for _ in run.steps():
            run.mark("forward")
            batch = next(batches)
            with run.autocast():
                logits, loss = _called(run, batch)
    return locals()


def _estimate_loss(run: Run) -> None:
    run.model.eval()
    batches = run.eval_batches()
    with no_grad():
        for _ in run.eval_steps():
            run.mark("evaluation")
            batch = next(batches)
            with run.autocast():
                logits, loss = _called(run, batch)
    run.model.train()
    del batch, logits, loss  # until here


def _called(run: Run, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    outputs = run.model(**batch)
    return outputs.logits, outputs.loss
