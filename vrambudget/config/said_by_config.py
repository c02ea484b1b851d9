"""What a config.json says about the job: honoured where the job says nothing, else reported.

    attn_implementation     "eager" and "sdpa" are the job's attention; others are not modelled
    gradient_checkpointing  true, as older files have it: every layer is checkpointed
    use_cache               whether a decoder caches keys and values; on unless it is false
    architectures           the class, whose task is the job's; a note where it stands for none
    dtype, torch_dtype      what from_pretrained loads weights in; a note where the job's are wider

Source: transformers/modeling_utils.py (_backward_compatibility_gradient_checkpointing,
from_pretrained, whose dtype is "auto" since 5.0), transformers/configuration_utils.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vrambudget.config.job import Job
from vrambudget.config.loops import TRAINERS
from vrambudget.config.settings import show
from vrambudget.config.unfamiliar import named_tasks
from vrambudget.config.versions import as_numbers

ATTENTION_KEYS = ("attn_implementation", "_attn_implementation")
MODELLED_ATTENTION = ("eager", "sdpa")
_DTYPE_KEYS = ("dtype", "torch_dtype")
_NARROW = {"bfloat16": "bf16", "float16": "fp16"}
_READS_DTYPE_SINCE = (5, 0)


def job_of_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job that a configuration decides."""
    fields: dict[str, Any] = {}
    for key in ATTENTION_KEYS:
        if values.get(key) in MODELLED_ATTENTION:
            fields["attention"] = values[key]
    if values.get("gradient_checkpointing") is True:
        fields["checkpointing"] = "full"
    if named := named_tasks(values):
        fields["task"] = named[0]
    return fields


def caches(values: Mapping[str, Any], stated: Mapping[str, Any]) -> bool:
    """Return whether a decoder caches keys and values in a job that says nothing of it.

    Every decoder's configuration has it on unless it says no; Trainer turns it off, generation has
    words of its own, and the compiler that is followed makes no cache, which is reported. A record
    that says nothing means off: the reference script turns it off.

    Source: transformers/trainer.py (Trainer._inner_training_loop), 5.17: it sets config.use_cache.
    """
    off = (
        stated.get("loop") in TRAINERS or stated.get("mode") == "generate" or stated.get("compile")
    )
    return not off and values.get("use_cache") is not False


def _of_nanogpt(job: Job) -> Iterator[str]:
    """Say what of nanoGPT's own train.py the job does not do."""
    eager = "" if job.compile else "eager "
    missing = [] if job.loop == "nanogpt" else ["--loop nanogpt"]
    missing += [] if job.compile else ["--compile"]
    if missing:
        yield (
            f"this is the {eager}model in loop {job.loop!r}: nanoGPT's own train.py, which compiles"
            f" it (compile = True) and so takes less, is {' '.join(missing)}"
        )


def remarks_on_config(values: Mapping[str, Any], job: Job, *, keeps_cache: bool) -> Iterator[str]:
    """Yield what a configuration says that the job does not do; and what it does by it alone."""
    if values.get("model_type") == "nanogpt" and job.mode == "train":
        yield from _of_nanogpt(job)
    if (names := values.get("architectures")) and not named_tasks(values):
        yield f"the configuration is of {show(names[0])}: estimated as {job.task}, see --task"
    key = next((key for key in _DTYPE_KEYS if str(values.get(key)) in _NARROW), None)
    reads = as_numbers(job.transformers) >= _READS_DTYPE_SINCE
    if key and reads and job.weight_dtype == "fp32" and job.quant is None:
        yield (
            f"the configuration says {key} {show(values[key])}, which from_pretrained loads weights"
            f" in; fp32 is assumed: add --weights {_NARROW[values[key]]} if you name no dtype"
        )
    cached = job.use_cache and job.checkpointing == "none" and job.mode in {"train", "eval"}
    if cached and "text_config" not in values:  # which a script's use_cache does not reach
        yield (
            "keys and values are cached, as the configuration has it: add --no-use-cache if the"
            " script sets model.config.use_cache = False"
        )
    if job.compile and keeps_cache and caches(values, {"loop": job.loop}):
        yield (
            "the configuration turns use_cache on; compiled jobs are modelled with it off, as with"
            " model.config.use_cache = False in the script"
        )
