"""The plain loop, as most people write it; `vrambudget.measure.loops.plain` is the same in torch.

The first step differs from the second: the optimizer makes its states at its end, and there are no
outputs of an earlier step. From the third on nothing changes but how the allocator lays it out.

An evaluation stands in the loop and uses its variables: the training's last outputs live until the
evaluation's first ones are there, and its last ones until the training's next.
"""

from typing import Any

from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import no_grad
from vrambudget.engine.tensor import Parameter
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.ops.shape import cat
from vrambudget.training.loops.run import Run
from vrambudget.training.optimizer_base import Optimizer
from vrambudget.training.scaler import GradScaler


def train(run: Run) -> dict[str, Any]:  # noqa: C901, PLR0912 - one script, and its variables
    """Train, and return what the loop's variables hold at the end."""
    model, settings = run.model, run.settings
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = run.make_optimizer(parameters)
    scaler = run.make_scaler()
    batches, eval_batches = run.batches(), run.eval_batches()
    losses: Any = []
    for step in run.steps():
        if settings.empty_cache:
            run.empty_cache()
        if run.evaluates_before(step):
            model.eval()
            gathered: Any = []
            with no_grad():
                for _ in run.eval_steps():
                    run.mark("evaluation")
                    if not settings.keep_outputs:
                        outputs = None
                    batch = next(eval_batches)
                    with run.autocast():
                        outputs = model(**batch)
                    if settings.eval_gather:
                        gathered.append(outputs.logits)
            if settings.eval_gather:
                predictions: Any = cat(gathered, 0)
            if not settings.keep_outputs:
                gathered = predictions = None
        model.train(mode=settings.model_mode == "train")
        for _ in run.micro_batches():
            run.mark("forward")
            if not settings.keep_outputs:
                outputs = None
            batch = next(batches)  # the last one lives until this is made
            with run.region(batch):
                with run.autocast():
                    outputs = model(**run.given(batch))  # the last ones live until these are there
                    loss = run.loss_of(outputs, batch)
                if settings.grad_accum > 1:
                    loss = mul_scalar(loss)  # divided by their number
                if settings.forward_returns == "loss":
                    outputs = None
                if settings.zero_grad == "late" and optimizer is not None:
                    optimizer.zero_grad()
                run.mark("backward")
                run_backward(scaler.scale(loss), retain_graph=settings.keep_losses == "graphs")
            if settings.keep_losses != "none":
                losses.append(loss)
        if settings.drop_before_step:
            del outputs, loss
        run.mark("optimizer_step")
        _step(run, optimizer, scaler, parameters)
    return locals()


def _step(
    run: Run, optimizer: Optimizer | None, scaler: GradScaler, parameters: list[Parameter]
) -> None:
    """Clip, step, and zero the gradients."""
    if run.settings.clip is not None:
        scaler.unscale(optimizer)
        run.clip(parameters)
    if optimizer is not None:
        scaler.step(optimizer)
        scaler.update()
        if run.settings.zero_grad != "late":
            optimizer.zero_grad(set_to_none=run.settings.zero_grad == "none")


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
