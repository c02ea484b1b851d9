"""The batch that a job feeds its model, by task.

    causal-lm, masked-lm    input_ids [B, T], labels [B, T]
    seq2seq-lm              input_ids [B, T], labels [B, target]
    in loop dpo             input_ids, attention_mask, completion_mask [2 B, T], labels of none
    packed in loop sft      input_ids, labels, position_ids [1, B T]: TRL makes one row of them
    seq-cls                 input_ids [B, T], labels [B]
    token-cls               input_ids [B, T], labels [B, T]
    qa                      input_ids [B, T], start_positions [B], end_positions [B]
    embed                   input_ids [B, T]
    image-cls               pixel_values [B, channels, height, width], labels [B]
    of sound                input_features [B, mel, frames], labels [B, target]

A tokenizer's attention_mask [B, T] comes after input_ids, as do the position_ids [B, T] of packed
rows.

Indices and masks are int64. Images and spectrograms come to the device in float32 and are then cast
to the weights' dtype.
"""

from typing import NamedTuple

from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig
from vrambudget.dtypes import DType, float32, int32, int64
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor
from vrambudget.ops.creation import made
from vrambudget.sampled_lengths import sampled_lengths

PACKED = 2
"""How many sequences a packed row has by default."""

REFERENCE_COLUMNS = ("ref_chosen_logps", "ref_rejected_logps")
"""What precomputing adds to a data set of pairs."""


class Input(NamedTuple):
    """One tensor of a batch, as it comes from the host."""

    shape: Shape
    dtype: DType
    keeps_dtype: bool = False  # else numbers come to the device and are cast to the weights' type


def _of_text(job: Job, batch: int) -> dict[str, Input]:
    """Return the tensors that a resolved job feeds, in the order in which they are made."""
    assert job.block is not None  # noqa: S101 - resolved by the caller
    per_sequence = Input((batch,), int64)
    if job.loop == "dpo":
        return _pairs(job, batch)
    if job.loop == "sft" and job.rows == "packed":
        return _flattened(batch, job.block)
    per_token = Input((batch, job.block), int64)
    mask = {"attention_mask": per_token} if job.attention_mask != "none" else {}
    if job.task == "embed":
        return {"input_ids": per_token, **mask}
    labels = per_token
    if job.task == "seq-cls":
        labels = per_sequence
    elif job.target_len is not None and job.task == "seq2seq-lm":
        labels = Input((batch, job.target_len), int64)
    positions = {"position_ids": per_token} if job.rows == "packed" else {}
    if job.task == "qa":
        ends = dict.fromkeys(("start_positions", "end_positions"), per_sequence)
        return {"input_ids": per_token, **mask, **positions, **ends}
    return {"input_ids": per_token, **mask, **positions, "labels": labels}


def inputs_for(config: ModelConfig, job: Job, *, batch: int | None = None) -> dict[str, Input]:
    """Return what a resolved job feeds the model of a configuration.

    Its own tensors, as of images or sound, or those of a text.
    """
    batch = job.batch if batch is None else batch
    own = config.own_inputs(job.model_copy(update={"batch": batch}))
    return dict(own) if own else _of_text(job, batch)


def row_text(config: ModelConfig, job: Job) -> str:
    """Return what a row of a model's own inputs is, "pixel_values 3 x 224 x 224"; "" of text."""
    own = config.own_inputs(job) or {}
    rows = {name: " x ".join(map(str, x.shape[1:])) for name, x in own.items()}
    return ", ".join(
        row if name.isdigit() else f"{name} {row}" for name, row in rows.items() if row
    )


def batches_of(config: ModelConfig, job: Job) -> list[dict[str, Input]]:
    """Return what a loop feeds, batch by batch: one where all are identical."""
    passes = job.steps * (job.grad_accum if job.mode == "train" else 1)
    return [inputs_for(config, at) for at in _at_lengths(job, passes)]


def eval_batches_of(config: ModelConfig, job: Job) -> list[dict[str, Input]]:
    """Return what an evaluation between steps feeds, by batch: one where all are identical."""
    jobs = _at_lengths(job, job.eval_batches or 1)
    return [inputs_for(config, at, batch=job.eval_batch) for at in jobs]


def _at_lengths(job: Job, count: int) -> list[Job]:
    """Return the job at the length of each of so many batches, or once if all are identical."""
    if job.shortest is None or job.block is None:
        return [job]
    own_target = job.target_len != job.block
    return [
        job.model_copy(
            update={"block": length, "target_len": job.target_len if own_target else length}
        )
        for length in sampled_lengths(job.shortest, job.block, count, job.draw or 0)
    ]


def _flattened(batch: int, block: int) -> dict[str, Input]:
    """Return packed rows as TRL's DataCollatorForLanguageModeling lays them end to end (1.16).

    The boundaries of their sequences are two tensors, for queries and for keys, though they are
    the same; only kernels for sequences of any length read them, and sdpa's do not.
    """
    per_token = Input((1, batch * block), int64)
    boundaries = Input((PACKED * batch + 1,), int32)
    return {
        **dict.fromkeys(("input_ids", "labels", "position_ids"), per_token),
        **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), boundaries),
        "seq_idx": Input(per_token.shape, int32),
    }


def _pairs(job: Job, batch: int) -> dict[str, Input]:
    """Return what DataCollatorForPreference makes of `batch` pairs (trl/trainer/dpo_trainer.py)."""
    assert job.block is not None  # noqa: S101 - resolved by the caller
    rows = Input((2 * batch, job.block), int64)
    inputs = {"input_ids": rows, "attention_mask": rows, "completion_mask": rows}
    if job.precompute_ref_log_probs:
        logps = Input((batch,), float32, keeps_dtype=True)
        inputs |= dict.fromkeys(REFERENCE_COLUMNS, logps)
    return inputs


def on_device(value: Input) -> Tensor:
    """Return the tensor on the device, in the type that the model reads."""
    x = made("to_device", value.shape, value.dtype)
    casts = value.dtype.is_floating_point and not value.keeps_dtype
    return to(x, context.options.dtype) if casts else x
