"""Lightning's Trainer with automatic optimization; `vrambudget.measure.loops.lightning` runs it.

    training_step   returns the loss: the outputs are gone in backward
    closure         the loss is divided by the number of micro-batches, be it one, and copied
    zero_grad       between forward and backward: a step's gradients live through the next forward
    autocast        casts a weight at every use: its cache of copies is off
    batch           lives until its step is over, the optimizer's included

A model of from_pretrained is in eval mode, which Lightning leaves as it is: no dropout.

Source: lightning/pytorch/loops/optimization/automatic.py (Closure, ClosureResult),
loops/training_epoch_loop.py (advance), loops/evaluation_loop.py, plugins/precision/amp.py
(MixedPrecision), 2.6.
Not modelled: precision "bf16-true" and "16-true", which cast the model's buffers, too (16-bit
weights run with "32-true" here, which leaves them); logging, outputs that validation keeps, manual
optimization, several GPUs.
"""

from typing import Any

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import no_grad
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.ops.shape import clone
from vrambudget.training.clip import clip_grad_norm
from vrambudget.training.loops.run import Run
from vrambudget.training.optimizer_base import Optimizer
from vrambudget.training.scaler import GradScaler


def train(run: Run) -> dict[str, Any]:
    """Train, and return what is left of it."""
    model, settings = run.model, run.settings
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer: Any = run.make_optimizer(parameters)
    scaler = run.make_scaler()
    batches = run.batches()
    model.train(mode=settings.model_mode == "train")
    evaluates, first = run.settings.evaluates, run.settings.eval_first
    if first:
        _look_for_length(1)
        _validate(run)
    _look_for_length(2)
    if evaluates and not first:
        _look_for_length(1)
    for step in run.steps():
        for i in run.micro_batches():
            run.mark("forward")
            is_last = i == settings.grad_accum - 1
            _advance(run, next(batches), optimizer, scaler, is_first=i == 0, is_last=is_last)
        if run.evaluates_before(step + 1):
            optimizer.zero_grad()  # on_validation_model_zero_grad
            _validate(run)
            model.train(mode=settings.model_mode == "train")
    return locals()


def evaluate(run: Run) -> dict[str, Any]:
    """Run `Trainer.validate`, whose validation_step returns the loss."""
    model = run.model
    model.eval()
    _look_for_length(1)
    batches = run.batches()
    for _ in run.steps():
        run.mark("forward")
        batch = next(batches)
        with no_grad(), run.autocast(caches=False):
            loss = model(**batch).loss
        del batch, loss
    return locals()


def _validate(run: Run) -> None:
    """Run validation_step, which returns the loss, on all batches."""
    run.model.eval()
    batches = run.eval_batches()
    for _ in run.eval_steps():
        run.mark("evaluation")
        batch = next(batches)
        with no_grad(), run.autocast(caches=False):
            loss = run.model(**batch).loss
        del batch, loss


def _look_for_length(times: int) -> None:
    """Ask all processes, one, how long the loader is (utilities/data.py, has_len_all_ranks)."""
    for _ in range(times):
        length = made("to_device", (), int64)
        is_empty = made("eq", (), bool_)
        del is_empty
        is_short = made("gt", (), bool_)
        del is_short, length


def _advance(
    run: Run,
    batch: dict[str, Tensor],
    optimizer: Optimizer,
    scaler: GradScaler,
    *,
    is_first: bool,
    is_last: bool,
) -> None:
    closure_loss, loss = _training_step(run, batch)
    if is_first:
        optimizer.zero_grad()
    scaled = scaler.scale(closure_loss)  # by pre_backward, ahead of the hook that marks
    run.mark("backward")
    run_backward(scaled)
    if is_last:
        run.mark("optimizer_step")
        del scaled
        scaler.unscale(optimizer)
        if run.settings.clip is not None:
            clip_grad_norm(optimizer.parameters)
        scaler.step(optimizer)
        scaler.update()
    del loss  # held by the closure's result


def _training_step(run: Run, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    with run.autocast(caches=False):
        training_step_output = run.model(**batch).loss
    closure_loss = mul_scalar(training_step_output)
    return closure_loss, clone(closure_loss.detach())
