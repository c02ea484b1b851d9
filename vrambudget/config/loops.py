"""What the loops of libraries set by themselves, and what they leave no choice in.

A loop's defaults are the library's own: they stand where a job says nothing, before a model card's.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vrambudget.config.old_torch import old_defaults
from vrambudget.config.versions import as_numbers, default_version, plain_version
from vrambudget.units import format_bytes

if TYPE_CHECKING:
    from vrambudget.config.job import Job

TRL_LOOPS = ("sft", "dpo")
METRICS = {"sft": ("entropy", "is_top1"), "dpo": ("entropy", "mean_logits", "is_top1")}
"""What TRL's trainers ask of their heads besides log probabilities."""

TRL_MAX_LENGTH = 1024  # SFTConfig.max_length, DPOConfig.max_length
TRAINERS = ("trainer", *TRL_LOOPS)
"""transformers' Trainer, and the loops that inherit its own."""

_PLAIN_ONLY: Mapping[str, Any] = {
    "zero_grad": "none",
    "forward_returns": "outputs",
    "keep_outputs": True,
    "drop_before_step": False,
    "shared_labels": False,
    "empty_cache": False,
    "model_mode": "train",
    "keep_losses": "none",
}
"""How a plain loop is written: libraries have written theirs. Field: its default."""

_ALSO = {
    "accelerate": ("forward_returns", "keep_outputs", "model_mode"),
    "lightning": ("model_mode",),
    **dict.fromkeys(TRAINERS, ("empty_cache",)),
}
"""What is a script's own in loops with a library, too."""

_TRAINER_OF = "5.17"  # of transformers
_TRAINER_EVAL_BATCH = 8  # TrainingArguments.per_device_eval_batch_size
_TRAINER_CLIP = 1.0  # TrainingArguments.max_grad_norm
_FUSED_SINCE = (2, 8)  # of torch: the default optim is adamw_torch_fused
TRAINER_OPTIMIZERS = (
    ("adamw", "fused"),
    ("adamw", "foreach"),
    ("adamw", None),
    ("sgd", None),
    ("adafactor", None),
    ("lion", None),
    ("lion-8bit", None),
    ("adamw-8bit", None),
    ("paged-adamw-8bit", None),
)
"""The optimizers and implementations that `TrainingArguments.optim` has."""


_PHRASES: tuple[tuple[str, Any, str], ...] = (
    ("rows", "packed", "rows packed"),
    ("shortest", True, "lengths that change"),
    ("label_smoothing", True, "label smoothing"),
    ("zero_grad", "zeros", "gradients zeroed in place"),
    ("zero_grad", "late", "gradients zeroed late"),
    ("forward_returns", "loss", "the loss alone returned"),
    ("keep_outputs", False, "outputs discarded"),
    ("drop_before_step", True, "outputs and loss dropped before the optimizer's step"),
    ("shared_labels", True, "labels that are the inputs"),
    ("empty_cache", True, "the cache emptied before every step"),
    ("keep_losses", "list", "losses kept"),
    ("keep_losses", "graphs", "losses kept with their graphs"),
    ("model_mode", "eval", "model in eval mode"),
    ("use_cache", True, "keys and values cached"),
    ("eval_gather", True, "logits gathered"),
    ("precompute_ref_log_probs", True, "the reference precomputed"),
    ("completion_len", True, "completions"),
)
"""How a script differs from a plain loop: field, value, words. True stands for any that is set."""

SCRIPT_KEYS = frozenset(
    {
        "loop",
        "weights",
        "draw",
        "eval_batches",
        "eval_batch",
        "eval_first",
        *(name for name, *_ in _PHRASES),
    }
)
"""The keys of a record without which it would be a plain loop's."""


def script_of(job: "Job") -> str:
    """Return what kind of script a job is: its loop, and how it differs from a plain one."""
    words = ["evaluation"] if job.eval_batches or job.mode == "eval" else []
    for name, value, phrase in _PHRASES:
        found = getattr(job, name)
        if bool(found) if value is True else found == value:
            words.append(phrase)
    if job.weights not in {None, "fp32"} and job.autocast_dtype:
        words.append("16-bit weights under autocast")
    return f"{job.loop}: {', '.join(words) or 'training'}"


def loop_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the loop that `values` name sets by itself.

    Source: transformers/training_args.py (TrainingArguments), 5.17; trl/trainer/base_config.py,
    1.16; nanoGPT's train.py; lightning/pytorch/trainer/trainer.py (num_sanity_val_steps), 2.6.
    """
    if old := old_defaults(values):
        return old
    if values.get("loop") == "lightning":
        return _of_lightning(values)
    if values.get("loop") == "nanogpt":
        return _of_nanogpt(values)
    if values.get("loop") not in TRAINERS:
        return {}
    defaults: dict[str, Any] = {"clip": _TRAINER_CLIP, "use_cache": False}
    torch = values.get("torch") or default_version("torch")
    if values.get("optimizer", "adamw") == "adamw" and _is_since(torch, _FUSED_SINCE):
        defaults["optimizer_impl"] = "fused"
    if values.get("eval_batches"):
        defaults["eval_batch"] = _TRAINER_EVAL_BATCH
    if values["loop"] in TRL_LOOPS:
        defaults["checkpointing"] = "full"
    return defaults


def _of_lightning(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave a model as from_pretrained does, and validate before all steps: the sanity check."""
    defaults: dict[str, Any] = {"model_mode": "eval"}
    if values.get("eval_batches"):
        defaults["eval_first"] = True
    return defaults


def _of_nanogpt(values: Mapping[str, Any]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"clip": 1.0, "grad_accum": 5 * 8}
    if values.get("optimizer", "adamw") == "adamw":
        defaults["optimizer_impl"] = "fused"
    if values.get("mode", "train") == "train" and values.get("steps", 3) >= 3:  # noqa: PLR2004
        defaults |= {"eval_batches": 200, "eval_first": True}  # eval_iters, at iteration 0
    return defaults


def _is_since(version: object, first: tuple[int, int]) -> bool:
    plain = plain_version(version) if isinstance(version, str) else None
    return plain is None or as_numbers(plain) >= first


def problems_of_loop(job: "Job") -> Iterator[str]:
    """Yield what a job's loop does not leave open."""
    if job.shared_labels and (job.task not in {"causal-lm", "masked-lm"} or job.label_smoothing):
        yield "shared_labels is modelled where labels match tokens, without label smoothing"
    if job.label_smoothing and (job.loop not in {"plain", "trainer"} or job.task == "qa"):
        yield "label_smoothing is modelled for loops 'plain' and 'trainer', and for labels alone"
    if job.keep_losses == "graphs" and job.checkpointing != "none":
        yield "keep_losses is 'graphs': what checkpoints recompute for kept graphs is not modelled"
    yield from _problems_of_trl(job)
    if job.loop == "plain":
        return
    for name, default in _PLAIN_ONLY.items():
        if name not in _ALSO.get(job.loop, ()) and getattr(job, name) != default:
            yield f"{name} is for loop 'plain'; in loop {job.loop!r} the library decides"
    if job.optimizer == "none" and job.mode == "train":
        yield f"optimizer is 'none', which loop {job.loop!r} does not train without"
    if job.loop in {"lightning", "nanogpt"} and job.eval_gather:
        yield f"eval_gather is a script's own: loop {job.loop!r} keeps no outputs"
    yield from _problems_of_nanogpt(job)
    if job.loop in TRAINERS:
        yield from _problems_of_trainer(job)


def remarks_on_loop(job: "Job") -> Iterator[str]:
    """Yield whose loop is modelled, and on what, where a user may have another."""
    if job.rows == "packed" and job.use_cache and job.checkpointing == "none":
        yield (
            "with use_cache on, transformers does not look where packed sequences begin: no mask is"
            " built, and tokens see those of other sequences; --no-use-cache builds it"
        )
    if job.loop in TRAINERS and as_numbers(job.transformers) != as_numbers(_TRAINER_OF):
        yield f"loop {job.loop!r} is the one of transformers {_TRAINER_OF}"
    if job.loop in TRL_LOOPS:
        yield (
            f"loop {job.loop!r} is the one of TRL 1.16: with 1.15 reserved bytes may be 1 % off,"
            " earlier ones make more logits"
        )
    if job.loop == "sft" and job.rows == "packed":
        yield (
            "packing makes one row of a batch, with a mask for it (flash_attention_2 needs none:"
            " --causal-mask skipped); rows that are not filled leave gaps in what is reserved,"
            " which --block A:B counts; packing_strategy='wrapped' is --rows full"
        )
    if job.loop in TRL_LOOPS and job.load is None:
        yield (
            "a model that TRL loads by its name lies in memory as device_map leaves it:"
            " --load device-map"
        )
    if job.loop == "dpo" and job.completion_len is None:
        yield (
            "all tokens but the first count as completions: say how long they are with"
            " --completion-len"
        )
    if job.quant is not None and job.mesh.data in {"fsdp1", "fsdp2"}:
        yield (
            "4-bit weights are assumed to be loaded in main memory (device_map={'': 'cpu'}), with"
            " bnb_4bit_quant_storage of the model's own type, and not prepared for k-bit training;"
            " transformers 5 without a device map first loads them whole on every GPU"
        )
    if job.mesh.records_streams:
        yield (
            "blocks that other streams use (record_stream) come back when their work is over, here"
            " at once: on a real GPU reserved may be more"
        )


def remark_on_leak(peaks: Sequence[int], left_bytes: int | None) -> str:
    """Say what losses that are kept with their graphs add in each step, and where that ends.

    `peaks` are those of the steps; `left_bytes`: of the GPU after the last of them.
    """
    growth = peaks[-1] - peaks[-2] if len(peaks) > 1 else peaks[-1]
    growing = f"losses are kept with their graphs: each step takes {format_bytes(growth)} more"
    if left_bytes is None or growth <= 0:
        return growing
    last = len(peaks) + max(0, left_bytes) // growth
    return f"{growing}; the GPU is full after about {last:,} steps"


def _problems_of_nanogpt(job: "Job") -> Iterator[str]:
    if job.loop == "nanogpt" and job.mode == "train" and job.optimizer != "adamw":
        yield f"optimizer is {job.optimizer!r}; loop 'nanogpt' has adamw"


def _problems_of_trainer(job: "Job") -> Iterator[str]:
    optimizer = (job.optimizer, job.optimizer_impl)
    if job.mode == "train" and optimizer not in TRAINER_OPTIMIZERS:
        words = f"{job.optimizer} ({job.optimizer_impl or 'default'})"
        known = ", ".join(dict.fromkeys(name for name, _ in TRAINER_OPTIMIZERS))
        yield f"optimizer {words} is none that loop {job.loop!r} is modelled with: {known}"
    if job.optimizer.endswith("8bit") and job.lora_rank is None:
        yield (
            f"optimizer {job.optimizer} of loop {job.loop!r} is modelled for adapters only: Trainer"
            " keeps the states of embeddings in 32 bits; loop 'plain' keeps them in 8"
        )
    if job.mode == "train" and job.clip is None:
        yield "clip is None, but Trainer computes the gradients' norm in any case"


def _problems_of_trl(job: "Job") -> Iterator[str]:
    if job.precompute_ref_log_probs and job.loop != "dpo":
        yield "precompute_ref_log_probs is for loop 'dpo'"
    if job.loop not in TRL_LOOPS:
        if job.completion_len is not None:
            yield "completion_len is for loops 'sft' and 'dpo'"
        return
    if job.rows == "packed" and job.loop == "dpo":
        yield "rows are packed, which loop 'dpo' has no way to do"
    if job.task not in {None, "causal-lm"}:
        yield f"task is {job.task!r}; loop {job.loop!r} trains causal language models"
    if job.block is not None and (job.completion_len or 0) > job.block:
        yield f"completion_len is {job.completion_len}, which is more than the block, {job.block}"
    if job.rows == "full" and job.attention_mask == "none":
        yield f"attention_mask is 'none', but loop {job.loop!r} always has one"
    if job.rows == "padded" and job.batch == 1 and job.loop == "sft":
        yield "rows of loop 'sft' are padded to a batch's longest; a batch of one has no padding"
    if job.use_cache:
        yield f"use_cache is off in loop {job.loop!r}"
