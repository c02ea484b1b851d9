"""transformers' Trainer; `vrambudget.measure.loops.trainer` runs it.

Its functions are here under its names, with its local variables: what a frame holds lives until it
returns. So the outputs go when `compute_loss` returns, before backward; a step's batches live until
the next step's are there; the norm of the gradients lives until the next clipping; an evaluation
runs beside all of them, and its last logits and labels live until its end.

Source: transformers/trainer.py and trainer_pt_utils.py (EvalLoopContainer), 5.17; accelerate's
accelerator.py (backward, clip_grad_norm_) and data_loader.py (DataLoaderShard), 1.15.
Not modelled: logging within the steps that are simulated (TrainingArguments.logging_steps is 500),
checkpoints that are saved.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from vrambudget.dtypes import bool_, float32, int64
from vrambudget.engine.context import no_grad
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.ops.fill import mul_number_
from vrambudget.ops.reduce import count_true
from vrambudget.ops.shape import cat
from vrambudget.training.accelerated import accelerated, backward
from vrambudget.training.label_smoother import smoothed_loss
from vrambudget.training.loops.run import Run
from vrambudget.training.scaler import GradScaler

Batch = dict[str, Tensor]
Predicted = tuple[Tensor, tuple[Tensor, ...] | None, Tensor | None]
PredictionStep = Callable[[Run, Batch], Predicted]


class ComputeLoss(Protocol):
    """`compute_loss` of a kind of Trainer."""

    def __call__(
        self,
        run: Run,
        inputs: Batch,
        num_items_in_batch: Tensor | None,
        *,
        return_outputs: bool = False,
    ) -> tuple[Tensor, Outputs | None]:
        """Return the loss, and the outputs if asked."""


@dataclass(frozen=True, slots=True)
class TrainerKind:
    """What a trainer that inherits Trainer's loop does its own way."""

    compute_loss: ComputeLoss
    prediction_step: PredictionStep
    counts_labels: bool = True  # else the loss is divided by the number of micro-batches


def train(run: Run) -> dict[str, Any]:
    """Train, and return what Trainer's variables hold at the end (`_run_epoch`)."""
    return trained(run, _OWN)


def evaluate(run: Run) -> dict[str, Any]:
    """Run `Trainer.evaluate`, whose batches are the steps."""
    return evaluated(run, _OWN)


def trained(run: Run, kind: TrainerKind) -> dict[str, Any]:
    """Train as a kind of Trainer does (`_run_epoch`)."""
    model = run.model
    if not run.has_ranks:
        run.empty_cache()  # accelerator.free_memory()
    optimizer = run.make_grouped_optimizer() if run.engine is None else None
    scaler = run.make_scaler()
    tr_loss = made("to_device", (), float32)
    run.train_begins()
    if run.evaluates_before(0):
        _evaluation_loop(run, kind, run.eval_steps(), run.eval_batches())
    batches = run.batches()
    grad_norm = None
    for step in run.steps():
        run.mark("forward")
        batch_samples, num_items_in_batch = _get_batch_samples(run, kind, batches)
        for i in run.micro_batches():
            run.mark("forward")
            inputs = batch_samples[i]
            tr_loss_step = _training_step(run, kind, inputs, num_items_in_batch, scaler)
            _look_for_nan(tr_loss_step)  # then it is added to tr_loss in place
        grad_norm = None
        run.mark("optimizer_step")
        if optimizer is not None:
            scaler.unscale(optimizer)
            grad_norm = run.clip(model.parameters())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if run.evaluates_before(step + 1):
            _evaluation_loop(run, kind, run.eval_steps(), run.eval_batches())
    return locals()


def evaluated(run: Run, kind: TrainerKind) -> dict[str, Any]:
    """Evaluate as a kind of Trainer does."""
    _evaluation_loop(run, kind, run.steps(), run.batches())
    return locals()


def _get_batch_samples(
    run: Run, kind: TrainerKind, batches: Iterator[Batch]
) -> tuple[list[Batch], Tensor | None]:
    batch_samples = [next(batches) for _ in range(run.settings.grad_accum)]
    counts = kind.counts_labels and "labels" in batch_samples[0]  # not the ends of an answer
    num_items = _get_num_items_in_batch(run, batch_samples) if counts else None
    return batch_samples, num_items


def _get_num_items_in_batch(run: Run, batch_samples: list[Batch]) -> Tensor:
    """Return how many labels there are: a scalar on the device."""
    num_items_in_batch: Tensor | None = None
    for batch in batch_samples:
        *rows, length = batch["labels"].shape
        shape = (*rows, length - 1) if run.counts_shifted_labels else (*rows, length)
        count = count_true(made("ne", shape, bool_))
        num_items_in_batch = made("add", (), int64)  # sum() begins with 0
        del count
    assert num_items_in_batch is not None  # noqa: S101 - there is a batch
    return over_ranks(run, num_items_in_batch) if run.has_ranks else num_items_in_batch


def over_ranks(run: Run, count: Tensor) -> Tensor:
    """Return the sum of all ranks' counts (average_tokens_across_devices): gathered, then added."""
    own = made("clone", count.shape, count.dtype)
    counts = made("gather", (run.settings.mesh.ranks,), count.dtype)
    del own, count
    return made("sum", (), counts.dtype)


def _training_step(
    run: Run,
    kind: TrainerKind,
    inputs: Batch,
    num_items_in_batch: Tensor | None,
    scaler: GradScaler,
) -> Tensor:
    run.model.train()
    loss, _ = kind.compute_loss(run, inputs, num_items_in_batch)
    if num_items_in_batch is None:
        loss = mul_scalar(loss)  # divided by the number of micro-batches, be it one
    run.mark("backward")
    backward(run, loss, scaler, divides=False)
    return loss.detach()


def _compute_loss(
    run: Run, inputs: Batch, num_items_in_batch: Tensor | None, *, return_outputs: bool = False
) -> tuple[Tensor, Outputs | None]:
    inputs, labels = dict(inputs), None
    if run.settings.label_smoothing:
        labels = inputs.pop("labels")
    if run.counts_items and num_items_in_batch is not None:
        inputs["num_items_in_batch"] = num_items_in_batch
    outputs = accelerated(run, **inputs)
    if labels is None:
        loss = outputs.loss
    else:
        assert num_items_in_batch is not None  # noqa: S101 - there are labels to smooth
        shifts = run.settings.task == "causal-lm"
        loss = smoothed_loss(outputs.logits, labels, num_items_in_batch, shift_labels=shifts)
    assert loss is not None  # noqa: S101 - there are labels
    loss = mul_number_(loss)  # by the number of processes
    return loss, outputs if return_outputs else None


def _look_for_nan(loss: Tensor) -> None:
    """torch.isnan(loss) or torch.isinf(loss) (logging_nan_inf_filter)."""
    is_nan = made("ne", (), bool_)
    del is_nan
    size = made("abs", (), loss.dtype)
    is_infinite = made("eq", (), bool_)
    del size, is_infinite


def _evaluation_loop(
    run: Run, kind: TrainerKind, steps: Iterator[int], batches: Iterator[Batch]
) -> None:
    run.model.eval()
    losses = logits = labels = all_losses = all_labels = None
    all_preds: tuple[Tensor, ...] | None = None
    for _ in steps:
        run.mark("evaluation")
        inputs = next(batches)
        losses, logits, labels = kind.prediction_step(run, inputs)
        losses = made("repeat", (run.settings.eval_batch or run.settings.batch,), float32)
        all_losses = _added(all_losses, losses)
        if logits is not None and labels is not None:
            _pad_across_processes(labels)
            _pad_across_processes(*logits)
            all_preds = _all_added(all_preds, logits)
            all_labels = _added(all_labels, labels)


def _prediction_step(run: Run, inputs: Batch) -> Predicted:
    labels = inputs["labels"]
    with no_grad():
        num_items_in_batch = _get_num_items_in_batch(run, [inputs])
        loss, outputs = _compute_loss(run, inputs, num_items_in_batch, return_outputs=True)
        assert outputs is not None  # noqa: S101 - asked for
        loss = made("mean", (), loss.dtype)
    if not run.settings.eval_gather:
        return loss, None, None
    return loss, (outputs.logits, *_tensors(outputs.others)), labels


def predicting(compute_loss: ComputeLoss, labels: str) -> PredictionStep:
    """Return TRL's prediction_step, whose loss comes without logits unless they are gathered."""

    def prediction_step(run: Run, inputs: Batch) -> Predicted:
        with no_grad():
            loss, outputs = compute_loss(run, inputs, None, return_outputs=run.settings.eval_gather)
        return (loss, None, None) if outputs is None else (loss, (outputs.logits,), inputs[labels])

    return prediction_step


def _tensors(others: tuple[object, ...]) -> list[Tensor]:
    """Return what is gathered besides logits: an encoder's states, and no cache."""
    if any(isinstance(other, tuple) for other in others):
        raise NotModelledError("eval_gather of outputs that hold routers' logits is not modelled")
    return [other for other in others if isinstance(other, Tensor)]


def _pad_across_processes(*tensors: Tensor) -> None:
    """Ask the one process for its sizes (accelerate/utils/operations.py)."""
    for x in tensors:
        if x.ndim > 1:
            made("to_device", (x.ndim,), int64)


def _added(before: Tensor | None, new: Tensor) -> Tensor:
    """EvalLoopContainer.add: one tensor of all batches so far."""
    return new if before is None else cat((before, new), 0)


def _all_added(before: tuple[Tensor, ...] | None, new: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if before is None:
        return new
    return tuple(_added(x, y) for x, y in zip(before, new, strict=True))


_OWN = TrainerKind(_compute_loss, _prediction_step)
