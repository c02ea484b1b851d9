"""transformers' Trainer itself; `vrambudget.training.loops.trainer` counts it.

What marks the phases stands around Trainer's own functions, and holds what their callers hold.
"""

import tempfile
from collections.abc import Callable
from typing import Any

from vrambudget.measure.loops.run import Run

_OPTIM = {
    ("adamw", "fused"): "adamw_torch_fused",
    ("adamw", "foreach"): "adamw_torch",
    ("adamw", None): "adamw_torch",
    ("sgd", None): "sgd",
    ("lion", None): "lion_32bit",
    ("lion-8bit", None): "lion_8bit",
    ("adamw-8bit", None): "adamw_8bit",
    ("paged-adamw-8bit", None): "paged_adamw_8bit",
}
"""TrainingArguments.optim by a job's optimizer and its implementation."""


def train(run: Run) -> dict[str, Any]:
    """Train, and return what is left of it."""
    with tempfile.TemporaryDirectory(prefix="vrambudget-") as folder:
        trainer = _trainer(run, folder)
        _mark_training(run, trainer)
        trainer.train()
        run.mark("step_end")
        return locals()


def evaluate(run: Run) -> dict[str, Any]:
    """Run `Trainer.evaluate`."""
    with tempfile.TemporaryDirectory(prefix="vrambudget-") as folder:
        trainer = _trainer(run, folder)
        _before(trainer, "prediction_step", run.next_step)
        trainer.evaluate()
        run.mark("step_end")
        return locals()


def _trainer(run: Run, folder: str) -> Any:
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415 - other loops need none

    job, trains = run.settings, run.settings.get("mode", "train") == "train"
    steps, times = job.get("steps", 3), job.get("grad_accum", 1)
    precision = job.get("precision", "fp32")
    key = (job.get("optimizer", "adamw"), job.get("optimizer_impl"))
    size = job.get("eval_batch", 8) if trains else job["batch"]
    run.result["trainable"] = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=job["batch"],
        per_device_eval_batch_size=size,
        gradient_accumulation_steps=times,
        max_steps=steps,
        max_grad_norm=job.get("clip") or 0.0,
        optim=_OPTIM[key] if trains else "adamw_torch",
        bf16=precision == "amp-bf16",
        fp16=precision == "amp-fp16",
        use_cache=bool(job.get("use_cache")),
        label_smoothing_factor=job.get("label_smoothing", 0.0),
        eval_strategy="steps" if job.get("eval_first") else "no",
        eval_steps=10**6,
        eval_on_start=bool(job.get("eval_first")),
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    evaluated = job.get("eval_batches", 0) if trains else steps
    gathers = job.get("eval_gather")
    return Trainer(
        model=run.model,
        args=arguments,
        train_dataset=run.rows(job["batch"] * times * steps),
        eval_dataset=run.rows(size * evaluated),
        compute_metrics=(lambda _predictions: {}) if gathers else None,
        callbacks=[_evaluating(run)],
    )


def _evaluating(run: Run) -> Any:
    """Return a callback that lets Trainer evaluate after the step that a job evaluates after."""
    from transformers import TrainerCallback  # noqa: PLC0415

    class Evaluating(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
            del args, given
            control.should_evaluate = run.evaluates_before(state.global_step)
            return control

    return Evaluating()


def _mark_training(run: Run, trainer: Any) -> None:
    """Mark the phases of Trainer's steps."""
    _before(trainer, "get_batch_samples", run.next_step)
    _before(trainer, "training_step", lambda: run.mark("forward"))
    _before(trainer.accelerator, "backward", lambda: run.mark("backward"))
    _before(trainer, "_clip_grad_norm", lambda: run.mark("optimizer_step"))
    _before(trainer, "prediction_step", lambda: run.mark("evaluation"))


def _before(owner: Any, name: str, act: Callable[[], None]) -> None:
    method = getattr(owner, name)

    def marked(*args: Any, **kwargs: Any) -> Any:
        act()
        return method(*args, **kwargs)

    setattr(owner, name, marked)
