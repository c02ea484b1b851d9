"""TOML for torchtitan: its Llama 3 with FSDP2, as `python -m torchtitan.train` reads it.

What cannot be said: other models, LoRA, tensor parallelism and pipelines.

Source: torchtitan 0.2, config/job_config.py (JobConfig); the learning rates are those of its
models/llama3/train_configs/.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vrambudget.config.foreign.torchtitan import flavor_of
from vrambudget.config.job import Job
from vrambudget.errors import NotModelledError
from vrambudget.report.tools.distributed import mesh_can_be_written
from vrambudget.scenario import Scenario

_SAID = frozenset(
    (
        *("ranks", "rank", "parallel", "reshard_after_forward", "cpu_offload", "replicate"),
        *("param_dtype", "reduce_dtype", "fsdp_wrap"),
    )
)
_CHECKPOINTING = {
    "none": {"mode": "none"},
    "full": {"mode": "full"},
    "selective-2": {"mode": "selective", "selective_ac_option": "2"},
}
_LEARNING_RATES = {"70B": 1.5e-4, "405B": 8e-5}
_LEARNING_RATE = 3e-4


def suits_torchtitan(job: Job) -> bool:
    """Return whether torchtitan's TOML has words for the job: all weights, in FSDP2's shards."""
    reshards = job.reshard_after_forward
    as_said = job.model_copy(update={"reshard_after_forward": reshards is not False})
    return (
        job.parallel == "fsdp2"
        and job.fsdp_wrap == "torchtitan"
        and (job.precision, job.param_dtype, job.reduce_dtype) == ("fp32", "bf16", "fp32")
        and reshards in (None, False, True)
        and mesh_can_be_written(as_said, _SAID)
        and job.lora_rank is None
        and job.grad_accum == 1
        and job.checkpointing in _CHECKPOINTING
        and job.optimizer in {"adamw", "adam"}
        and not job.compile
    )


def torchtitan(scenario: Scenario, job: Job, head: str) -> str:
    """Return a file for `torchrun ... -m torchtitan.train --job.config_file FILE`."""
    lines = [f"# {line}" for line in head.splitlines()]
    for table, values in _tables(scenario, job):
        lines += ["", f"[{table}]", *(f"{key} = {_text(value)}" for key, value in values.items())]
    return "\n".join(lines)


def _text(value: object) -> str:
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _tables(scenario: Scenario, job: Job) -> Iterator[tuple[str, Mapping[str, Any]]]:
    flavor = flavor_of(scenario.values)
    if flavor is None:
        raise NotModelledError(
            f"torchtitan's Llama 3 has no flavor like {scenario.model}",
            hint="leave --as out, or name llama-3.1-8b, llama-3.1-70b or llama-3.1-405b",
        )
    names = {"adamw": "AdamW", "adam": "Adam"}
    yield "model", {"name": "llama3", "flavor": flavor}
    yield (
        "optimizer",
        {
            "name": names[job.optimizer],
            "lr": _LEARNING_RATES.get(flavor, _LEARNING_RATE),
            "implementation": job.optimizer_impl or "fused",
        },
    )
    yield (
        "training",
        {
            "local_batch_size": job.batch,
            "seq_len": job.block,
            "max_norm": job.clip or 0.0,
            "mixed_precision_param": "bfloat16",
            "mixed_precision_reduce": "float32",
            "enable_cpu_offload": job.cpu_offload,
        },
    )
    reshards = {None: "default", True: "always", False: "never"}[job.reshard_after_forward]  # type: ignore[index]
    yield (
        "parallelism",
        {
            "data_parallel_replicate_degree": job.replicate,
            "data_parallel_shard_degree": job.mesh.ranks // job.replicate,
            "fsdp_reshard_after_forward": reshards,
        },
    )
    yield "activation_checkpoint", _CHECKPOINTING[job.checkpointing]
