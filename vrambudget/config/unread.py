"""Options that a job's mode does not read: a report names them, as they change nothing."""

from collections.abc import Iterator, Mapping
from typing import Any

from vrambudget.config.fields.generation import Generation
from vrambudget.config.job import Job
from vrambudget.config.settings import canonical

_OF_FORWARD = frozenset({"logits_to_keep", "with_grad", "pool"})
_OF_GENERATE = Generation.model_fields.keys() - _OF_FORWARD
_OF_TRAINING = frozenset(
    {"optimizer", "optimizer_impl", "clip", "grad_accum"}
    | {"label_smoothing", "zero_grad", "forward_returns", "checkpointing"}
)
_OF_BATCHES = frozenset(
    {"block", "target_len", "rows", "attention_mask", "loop", "steps", "keep_outputs", "use_cache"}
)
_UNREAD = {
    "train": _OF_GENERATE | {"logits_to_keep"},
    "eval": _OF_GENERATE | {"logits_to_keep"},
    "forward": _OF_GENERATE | _OF_TRAINING,
    "generate": _OF_TRAINING | _OF_BATCHES | {"logits_to_keep"},
}
_OF_SAMPLING = frozenset({"temperature", "top_k", "top_p"})


def unread(given: Mapping[str, Any], job: Job) -> Iterator[str]:
    """Yield a sentence for those of the `given` options that the job's mode leaves unread."""
    usual = Job.model_construct()
    names = {
        name: value
        for name, value in canonical(given, Job.aliases).items()
        if value != getattr(usual, name, None)
    }
    if idle := [name for name in names if name in _UNREAD[job.mode]]:
        lengths = job.mode == "generate" and "block" in idle
        instead = ", whose lengths are prompt and new" if lengths else ""
        yield f"{', '.join(idle)}: not read with mode {job.mode!r}{instead}"
    if job.mode == "generate" and not job.sample and (of_sampling := _OF_SAMPLING & names.keys()):
        yield f"{', '.join(sorted(of_sampling))}: not read without sample, of which generate warns"
