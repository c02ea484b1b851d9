"""How GPUs share a job, in the words of Trainer, accelerate and axolotl.

    ddp                   what torchrun and `accelerate launch` do by themselves
    fsdp2                 fsdp and fsdp_config, FSDP's second version, layers wrapped by their class
    deepspeed2, 3         DeepSpeed's own keys; Trainer fills in what is "auto"

Source: transformers 5.17, training_args.py (_process_fsdp_args), integrations/deepspeed.py;
accelerate 1.15, commands/config/config_args.py (ClusterConfig); axolotl 0.19,
utils/schemas/fsdp.py.
"""

from collections.abc import Iterator
from typing import Any

from vrambudget.config.fields.ranks import Ranks
from vrambudget.config.job import Job

_SAID = frozenset(("ranks", "rank", "parallel", "reshard_after_forward", "cpu_offload"))
_LAYOUTS = frozenset((None, "ddp", "fsdp2", "deepspeed2", "deepspeed3"))
_WRAP = "TRANSFORMER_BASED_WRAP"


def mesh_can_be_written(job: Job, said: frozenset[str] = _SAID) -> bool:
    """Return whether Trainer and accelerate have words for a job's layout."""
    usual = all(
        getattr(job, name) == field.default
        for name, field in Ranks.model_fields.items()
        if name not in said
    )
    # accelerate hands the root of FSDP2 what it hands the layers: true or false.
    is_said = job.parallel != "fsdp2" or isinstance(job.reshard_after_forward, bool)
    return usual and job.parallel in _LAYOUTS and is_said


def has_engine(job: Job) -> bool:
    """Return whether DeepSpeed's engine runs the job, whose bf16 and fp16 are its own."""
    return str(job.parallel).startswith("deepspeed")


def of_trainer(job: Job) -> Iterator[tuple[str, Any]]:
    """Yield TrainingArguments of the layout."""
    if job.parallel == "fsdp2":
        config = {
            "version": 2,
            "auto_wrap_policy": _WRAP,
            "reshard_after_forward": job.reshard_after_forward,
        }
        yield "fsdp", True
        yield "fsdp_config", config | ({"cpu_offload": True} if job.cpu_offload else {})
    if has_engine(job):
        yield "deepspeed", _deepspeed(job)


def of_axolotl(job: Job) -> Iterator[tuple[str, Any]]:
    """Yield axolotl's keys of the layout."""
    if job.parallel == "fsdp2":
        yield "fsdp_version", 2
        yield (
            "fsdp_config",
            {
                "auto_wrap_policy": _WRAP,
                "reshard_after_forward": job.reshard_after_forward,
                "offload_params": job.cpu_offload,
                "state_dict_type": "FULL_STATE_DICT",
            },
        )
    if has_engine(job):
        yield "deepspeed", _deepspeed(job)


def of_accelerate(job: Job) -> Iterator[tuple[str, Any]]:
    """Yield the lines of accelerate's own file: how many GPUs, and how they share the work."""
    kinds = {None: "NO", "ddp": "MULTI_GPU", "fsdp2": "FSDP"}
    yield "compute_environment", "LOCAL_MACHINE"
    yield "distributed_type", kinds.get(job.parallel, "DEEPSPEED")
    yield "mixed_precision", (job.weight_dtype if has_engine(job) else job.autocast_dtype) or "no"
    yield "num_machines", 1
    yield "num_processes", job.mesh.ranks
    if job.parallel == "fsdp2":
        yield (
            "fsdp_config",
            {
                "fsdp_version": 2,
                "fsdp_auto_wrap_policy": _WRAP,
                "fsdp_reshard_after_forward": job.reshard_after_forward,
                "fsdp_offload_params": job.cpu_offload,
                "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            },
        )
    if has_engine(job):
        yield (
            "deepspeed_config",
            {
                "zero_stage": _stage(job),
                "gradient_accumulation_steps": job.grad_accum,
                "gradient_clipping": job.clip or 0.0,
                "offload_optimizer_device": "none",
                "offload_param_device": "none",
            },
        )


def _deepspeed(job: Job) -> dict[str, Any]:
    sizes = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    return {
        **dict.fromkeys(sizes, "auto"),
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": {"stage": _stage(job)},
    }


def _stage(job: Job) -> int:
    return int(str(job.parallel)[-1])
