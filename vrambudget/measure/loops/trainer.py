"""transformers' Trainer itself; `vrambudget.training.loops.trainer` models it.

What marks the phases stands around Trainer's own functions, and holds what their callers hold.
"""

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from vrambudget.measure.loops.run import MeasuredRun

_OPTIM = {
    ("adamw", "fused"): "adamw_torch_fused",
    ("adamw", "foreach"): "adamw_torch",
    ("adamw", None): "adamw_torch",
    ("sgd", None): "sgd",
    ("adafactor", None): "adafactor",
    ("lion", None): "lion_32bit",
    ("lion-8bit", None): "lion_8bit",
    ("adamw-8bit", None): "adamw_8bit",
    ("paged-adamw-8bit", None): "paged_adamw_8bit",
}
"""TrainingArguments.optim by a job's optimizer and its implementation."""


MakeTrainer = Callable[[MeasuredRun, str], Any]


def train(run: MeasuredRun) -> dict[str, Any]:
    """Train, and return what is left of it."""
    return trained(run, _trainer)


def evaluate(run: MeasuredRun) -> dict[str, Any]:
    """Run `Trainer.evaluate`."""
    return evaluated(run, _trainer)


def trained(run: MeasuredRun, make_trainer: MakeTrainer) -> dict[str, Any]:
    """Train with a Trainer, and return what is left of it."""
    with tempfile.TemporaryDirectory(prefix="vrambudget-") as folder:
        trainer = _made(run, make_trainer, folder)
        _mark_training(run, trainer)
        trainer.train()
        run.mark("step_end")
        return locals()


def evaluated(run: MeasuredRun, make_trainer: MakeTrainer) -> dict[str, Any]:
    """Run a Trainer's `evaluate`."""
    with tempfile.TemporaryDirectory(prefix="vrambudget-") as folder:
        trainer = _made(run, make_trainer, folder)
        _before(trainer, "prediction_step", run.next_step)
        trainer.evaluate()
        run.mark("step_end")
        return locals()


def _made(run: MeasuredRun, make_trainer: MakeTrainer, folder: str) -> Any:
    trainer = make_trainer(run, folder)
    run.result["trainable"] = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    return trainer


def _trainer(run: MeasuredRun, folder: str) -> Any:
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415 - other loops need none

    trained, evaluated = counts_of_batches(run)
    return Trainer(
        model=run.model,
        args=TrainingArguments(
            **arguments(run, folder),
            use_cache=bool(run.settings.get("use_cache")),
            **compiles(run.settings),
            label_smoothing_factor=run.settings.get("label_smoothing", 0.0),
        ),
        train_dataset=run.rows(trained, run.settings["batch"]),
        eval_dataset=run.rows(evaluated, eval_size(run)),
        **others(run),
    )


def compiles(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that compile the model: a mode alone would, too."""
    if not job.get("compile"):
        return {}
    return {"torch_compile": True, "torch_compile_mode": job.get("compile_mode")}


def arguments(run: MeasuredRun, folder: str) -> dict[str, Any]:
    """Return the arguments that say what the job says."""
    job, trains = run.settings, run.settings.get("mode", "train") == "train"
    precision = job.get("precision", "fp32")
    key = (job.get("optimizer", "adamw"), job.get("optimizer_impl"))
    return {
        "output_dir": folder,
        "per_device_train_batch_size": job["batch"],
        "per_device_eval_batch_size": eval_size(run),
        "gradient_accumulation_steps": job.get("grad_accum", 1),
        "max_steps": job.get("steps", 3),
        "train_sampling_strategy": "sequential",  # a batch's rows are as long as each other
        "max_grad_norm": job.get("clip") or 0.0,
        "optim": _OPTIM[key] if trains else "adamw_torch",
        "bf16": precision == "amp-bf16",
        "fp16": precision == "amp-fp16",
        "eval_strategy": "steps" if job.get("eval_first") else "no",
        "eval_steps": 10**6,
        "eval_on_start": bool(job.get("eval_first")),
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }


def others(run: MeasuredRun) -> dict[str, Any]:
    """Return what a Trainer gets besides: what lets it evaluate, and gather the logits."""
    gathers = run.settings.get("eval_gather")
    return {
        "compute_metrics": (lambda _predictions: {}) if gathers else None,
        "callbacks": [_evaluating(run)],
    }


def counts_of_batches(run: MeasuredRun) -> tuple[int, int]:
    """Return how many batches are trained on and how many are evaluated."""
    job, steps = run.settings, run.settings.get("steps", 3)
    trains = job.get("mode", "train") == "train"
    evaluated = job.get("eval_batches", 0) if trains else steps
    return job.get("grad_accum", 1) * steps, evaluated


def eval_size(run: MeasuredRun) -> int:
    """Return the rows of an evaluation's batch."""
    trains = run.settings.get("mode", "train") == "train"
    size: int = run.settings.get("eval_batch", 8) if trains else run.settings["batch"]
    return size


def _evaluating(run: MeasuredRun) -> Any:
    """Return a callback that lets Trainer evaluate after the step that a job evaluates after."""
    from transformers import TrainerCallback  # noqa: PLC0415

    class Evaluating(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
            del args, given
            control.should_evaluate = run.evaluates_before(state.global_step)
            return control

    return Evaluating()


def _mark_training(run: MeasuredRun, trainer: Any) -> None:
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
