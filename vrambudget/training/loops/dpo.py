"""TRL's DPOTrainer: Trainer's loop over pairs, with a loss against a reference.

A batch is its chosen rows, then its rejected ones: twice as many go through the model. The
reference goes through second, under no_grad: a frozen copy of the model, kept beside it; with
adapters the model itself, they disabled; or nothing, where its log probabilities were computed
before training (`precompute_ref_log_probs`). Dropout is off, also that of adapters.

Source: trl/trainer/dpo_trainer.py (_compute_loss, compute_ref_log_probs, _precompute_ref_logps),
1.16, with loss_type "sigmoid".
Not modelled: other losses and divergences, ld_alpha, weighting, sync_ref_model, adapters that are
trained further (whose copy is the reference), images.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.context import context, no_grad
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.layers import Dropout
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import made
from vrambudget.ops.reduce import sum_dim
from vrambudget.ops.shape import last_elements, split
from vrambudget.training.accelerated import accelerated, held_by_loader
from vrambudget.training.fused_head import fused
from vrambudget.training.inputs import REFERENCE_COLUMNS
from vrambudget.training.loops import trainer
from vrambudget.training.loops.run import Run
from vrambudget.training.loops.trainer import Batch
from vrambudget.training.preferences import logratio, measured, sigmoid_loss


def train(run: Run) -> dict[str, Any]:
    """Train, and return what the trainer's variables hold at the end."""
    return trainer.trained(run, _made(run))


def evaluate(run: Run) -> dict[str, Any]:
    """Run `DPOTrainer.evaluate`, whose batches are the steps."""
    return trainer.evaluated(run, _made(run))


def _made(run: Run) -> trainer.TrainerKind:
    """Make the trainer: its reference, or the reference's log probabilities of all rows."""
    settings = run.settings
    precomputes, has_adapters = settings.precompute_ref_log_probs, settings.lora_rank is not None
    ref_model = None if precomputes or has_adapters else run.make_reference()
    for model in (run.model, ref_model):
        for module in () if model is None else model.modules():
            if isinstance(module, Dropout):
                module.p = 0.0
    if precomputes:
        _precompute_ref_logps(run, run.batches, settings.steps * settings.grad_accum)
        evaluated = settings.eval_batches if settings.mode == "train" else settings.steps
        _precompute_ref_logps(run, run.eval_batches, evaluated or 0)
    compute_loss = partial(_compute_loss, ref_model=ref_model)
    prediction_step = trainer.predicting(compute_loss, "input_ids")
    return trainer.TrainerKind(compute_loss, prediction_step, counts_labels=False)


def _precompute_ref_logps(run: Run, batches: Callable[..., Iterator[Batch]], count: int) -> None:
    data_loader = held_by_loader(batches(without=REFERENCE_COLUMNS))
    for _ in range(count):
        padded_batch = next(data_loader)
        logps = _ref_logps(run, run.model, padded_batch, _labels(padded_batch))
        del logps


def _ref_logps(run: Run, model: Module, inputs: Batch, labels: Tensor) -> Tensor:
    """Return the reference's log probabilities [2 B]: the model's own, without adapters."""
    adapters = run.settings.lora_rank is None
    masks = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    with no_grad():
        log_probs = fused(run, model, {**masks, "labels": labels}, adapters=adapters).log_probs
    return sum_dim(last_elements(log_probs), 1)


def _labels(inputs: Batch) -> Tensor:
    """input_ids.masked_fill(completion_mask == 0, -100)."""
    shape = inputs["input_ids"].shape
    is_prompt = made("eq", shape, bool_)
    labels = made("masked_fill", shape, int64)
    del is_prompt
    return labels


def _compute_loss(
    run: Run,
    inputs: Batch,
    _num_items_in_batch: Tensor | None,
    *,
    return_outputs: bool = False,
    ref_model: Module | None,
) -> tuple[Tensor, Outputs | None]:
    masks = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    labels = _labels(inputs)
    outputs = fused(run, run.model, {**masks, "labels": labels})
    logps = sum_dim(last_elements(outputs.log_probs), 1)
    chosen_logps, rejected_logps = split(logps, logps.shape[0] // 2, 0)
    if run.settings.precompute_ref_log_probs:
        ref_logps = inputs["ref_chosen_logps"]
    else:
        model = run.model if ref_model is None else ref_model
        adapters = run.settings.lora_rank is None
        with no_grad():
            ref_outputs = fused(run, model, {**masks, "labels": labels}, adapters=adapters)
            ref_logps = sum_dim(last_elements(ref_outputs.log_probs), 1)
    chosen_logratios = logratio(chosen_logps)
    rejected_logratios = logratio(rejected_logps)
    loss, held = sigmoid_loss(chosen_logratios, rejected_logratios)
    context.operation = "metrics"
    metrics = measured(run, outputs, chosen_logratios.shape[0], trains=run.model.training)
    logits: Outputs | None = None
    if return_outputs:
        with no_grad():
            logits = accelerated(run, **masks)
    del ref_logps, held, metrics  # held until here
    return loss, logits
