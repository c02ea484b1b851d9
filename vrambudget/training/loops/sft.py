"""TRL's SFTTrainer: Trainer's loop with a loss and metrics of its own.

The loss comes from a head that makes no logits (`vrambudget.training.fused_head`). Its entropy and
accuracy are gathered from scalars; with eval_gather a second forward pass, under no_grad, makes the
logits. Rows come with a mask, even if it is all ones; packed rows (packing=True) come as one row
with positions that restart, whose mask [B T, B T] transformers builds.

Source: trl/trainer/sft_trainer.py (compute_loss, prediction_step), 1.16.
Not modelled: rows that packing leaves unfilled, label smoothing, loss_type "dft", liger kernels,
activation offloading, images.
"""

from collections.abc import Callable
from typing import Any

from vrambudget.dtypes import bool_, float32, int64
from vrambudget.engine.context import no_grad
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import div_by_constant, mul_scalar, neg
from vrambudget.ops.reduce import count_true, sum_all, with_partial_sums
from vrambudget.training.accelerated import accelerated
from vrambudget.training.fused_head import FusedOutputs, fused
from vrambudget.training.loops import trainer
from vrambudget.training.loops.run import Run
from vrambudget.training.loops.trainer import Batch


def train(run: Run) -> dict[str, Any]:
    """Train, and return what the trainer's variables hold at the end."""
    return trainer.trained(run, _KIND)


def evaluate(run: Run) -> dict[str, Any]:
    """Run `SFTTrainer.evaluate`, whose batches are the steps."""
    return trainer.evaluated(run, _KIND)


def _compute_loss(
    run: Run, inputs: Batch, num_items_in_batch: Tensor | None, *, return_outputs: bool = False
) -> tuple[Tensor, Outputs | None]:
    outputs = fused(run, run.model, inputs)
    per_token_loss = neg(outputs.log_probs)
    num_tokens = num_items_in_batch
    if num_tokens is None:
        num_tokens = count_true(outputs.label_mask)
    total = sum_all(per_token_loss)
    loss = div_by_constant(total, made("clamp", (), int64))
    del total
    if num_items_in_batch is not None:
        loss = mul_scalar(loss)  # by the number of processes
    metrics = _metrics(run, outputs)
    if run.model.training:
        mask = inputs.get("attention_mask")
        gathers = _gathers(run)
        gathered = gathers(run, made("to_device", (), int64) if mask is None else _sum(mask))
        del gathered
    logits: Outputs | None = None
    if return_outputs:
        with no_grad():
            logits = accelerated(run, **{k: v for k, v in inputs.items() if k != "labels"})
    del metrics  # held until here
    return loss, logits


def _metrics(run: Run, outputs: FusedOutputs) -> tuple[Tensor, ...]:
    """Return what entropy and accuracy are made of: sums, and one number read back of each."""
    assert outputs.entropy is not None  # noqa: S101 - this trainer asks for both
    assert outputs.is_top1 is not None  # noqa: S101
    num_valid = _gathers(run)(run, count_true(outputs.label_mask))
    entropy_sum = _gathers(run)(run, sum_all(outputs.entropy.detach()))
    num_correct = _gathers(run)(run, count_true(outputs.is_top1))
    for dtype in (entropy_sum.dtype, float32):
        is_positive = made("gt", (), bool_)
        del is_positive
        made("div", (), dtype)  # freed at once: nobody holds it
    return num_valid, entropy_sum, num_correct


def _gathers(run: Run) -> Callable[[Run, Tensor], Tensor]:
    """Return gather_for_metrics(scalar).sum(): of one process the scalar itself is summed."""
    return trainer.over_ranks if run.has_ranks else _summed


def _summed(_run: Run, scalar: Tensor) -> Tensor:
    return made("sum", (), scalar.dtype)


def _sum(x: Tensor) -> Tensor:
    total = made("sum", (), x.dtype)
    with_partial_sums(x, tuple(range(x.ndim)))
    return total


_KIND = trainer.TrainerKind(_compute_loss, trainer.predicting(_compute_loss, "labels"))
