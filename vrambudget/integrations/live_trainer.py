"""What Hugging Face's Trainer says of its job: TrainingArguments, its class, its first batches.

Source: transformers 5.17, trainer.py (Trainer.compute_loss, evaluation_loop) and training_args.py.
"""

import sys
from collections.abc import Iterator, Mapping, Sized
from typing import Any

from vrambudget.config.job import EVALUATED_BEFORE
from vrambudget.config.loops import TRL_LOOPS
from vrambudget.errors import NotModelledError
from vrambudget.integrations.live_batch import read_batch
from vrambudget.integrations.live_trl import loop_of, overridden, trl_fields
from vrambudget.integrations.watch import Reading
from vrambudget.tape.settling import MOST_STEPS

_MOST_EVALUATED = 1000  # batches, that a job may have
_FRAMES = 12  # between a callback's method and the Trainer's loop
_CHANGES_ALL = {
    "torch_compile": "torch.compile, which fuses operations",
    "use_liger_kernel": "Liger's kernels, which never make the logits",
    "deepspeed": "DeepSpeed, which keeps weights and states elsewhere",
    "fsdp": "FSDP, which divides weights and states between processes",
}
"""Arguments of the Trainer under which an eager estimate would be far off."""


def read_trainer(args: Any, given: Mapping[str, Any], *, block: int | None) -> Reading:
    """Return what is known of the job; `given` is what the Trainer hands to its callbacks.

    Raises NotModelledError for what changes everything.
    """
    trainer = _calling_trainer()
    for name, what in _CHANGES_ALL.items():
        if getattr(args, name, None):
            raise NotModelledError(what)
    loop = loop_of(trainer)
    batch = int(args.per_device_train_batch_size)
    fields: dict[str, Any] = {
        "batch": batch,
        "grad_accum": args.gradient_accumulation_steps,
        "loop": loop,
        "clip": args.max_grad_norm or None,
        "label_smoothing": float(args.label_smoothing_factor),
        **trl_fields(args, loop),
    }
    if args.bf16 or args.fp16:
        fields["precision"] = "amp-bf16" if args.bf16 else "amp-fp16"
    fields |= _evaluation(args, trainer)
    if 0 < args.max_steps <= MOST_STEPS:
        fields["steps"] = max(args.max_steps, EVALUATED_BEFORE if "eval_batches" in fields else 1)
    not_modelled = list(_not_modelled(args, trainer, fields))
    if block is None:
        has_completions = loop in TRL_LOOPS
        loader = given.get("train_dataloader")
        read, uncounted = read_batch(loader, batch, has_completions=has_completions)
        fields |= read
        not_modelled += uncounted
    else:
        fields["block"] = block
    return Reading(given["model"], given.get("optimizer"), fields, tuple(not_modelled))


def _calling_trainer() -> Any:
    """Return the Trainer that calls a callback's method, None if there is none.

    A callback is handed everything but the Trainer itself (CallbackHandler.call_event).
    """
    frame = sys._getframe()  # noqa: SLF001 - the only way to it
    for _ in range(_FRAMES):
        if frame.f_back is None:
            break
        frame = frame.f_back
        found = frame.f_locals.get("self")
        if hasattr(found, "callback_handler") and hasattr(found, "compute_loss"):
            return found
    return None


def _evaluation(args: Any, trainer: Any) -> dict[str, Any]:
    """Return the fields of the evaluation between steps: none without one, or of unknown length."""
    strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
    dataset = getattr(trainer, "eval_dataset", None)
    if strategy == "no" and not args.eval_on_start:
        return {}
    if not isinstance(dataset, Sized) or isinstance(dataset, Mapping):  # a stream, or several
        return {}
    batch = int(args.per_device_eval_batch_size)
    gathers = getattr(trainer, "compute_metrics", None) is not None
    return {
        "eval_batch": batch,
        "eval_batches": min(-(-len(dataset) // batch), _MOST_EVALUATED),
        "eval_first": bool(args.eval_on_start),
        "eval_gather": gathers and not args.prediction_loss_only,
    }


def _not_modelled(args: Any, trainer: Any, fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield what this training does that the plain loop does not."""
    for method in overridden(trainer):
        yield f"{type(trainer).__name__}.{method}, which is not the Trainer's own"
    if getattr(trainer, "compute_loss_func", None) is not None:
        yield "compute_loss_func, a loss of its own"
    strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
    if (strategy != "no" or args.eval_on_start) and "eval_batches" not in fields:
        yield f"evaluation between steps (batch {args.per_device_eval_batch_size})"
    if fields.get("eval_batches") == _MOST_EVALUATED and fields["eval_gather"]:
        yield f"logits of evaluation batches beyond the first {_MOST_EVALUATED}"
    if fields.get("eval_gather") and args.eval_accumulation_steps:
        yield "eval_accumulation_steps, which moves gathered logits to the host now and then"
    if args.neftune_noise_alpha:
        yield "NEFTune's noise on the embeddings"
    if args.world_size > 1 or args.n_gpu > 1:
        yield f"{max(args.world_size, args.n_gpu)} GPUs: what each needs to talk to the others"
