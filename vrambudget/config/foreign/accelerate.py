"""accelerate's YAML, as `accelerate config` writes it.

Source: accelerate 1.15, commands/config/config_args.py (ClusterConfig).
"""

from vrambudget.config.foreign.meanings import (
    Choice,
    Same,
    Table,
    Uncounted,
    ignored,
    of_ranks,
)

ACCELERATE: Table = {
    "mixed_precision": Choice(
        "mixed precision",
        {
            "no": {"precision": "fp32"},
            "bf16": {"precision": "amp-bf16"},
            "fp16": {"precision": "amp-fp16"},
        },
    ),
    "gradient_accumulation_steps": Same("grad_accum"),
    "distributed_type": Uncounted("more than one GPU", ("NO", "MULTI_GPU"), flag=False),
    "use_cpu": Uncounted("a training on the CPU"),
    "dynamo_config.dynamo_backend": Uncounted(
        "torch.compile", ("NO", "no"), flag=False, saves=True
    ),
    "dynamo_backend": Uncounted("torch.compile", ("NO", "no"), flag=False, saves=True),
    **of_ranks(
        "num_processes num_machines machine_rank gpu_ids main_process_ip main_process_port"
        " rdzv_backend same_network tpu_name tpu_zone tpu_env tpu_use_cluster tpu_use_sudo"
        " downcast_bf16 commands command_file tpu_vm"
    ),
    **ignored("compute_environment debug main_training_function enable_cpu_affinity"),
}

IGNORED_GROUPS = ("dynamo_config",)
RANKS_GROUPS = (
    "fsdp_config",
    "deepspeed_config",
    "megatron_lm_config",
    "parallelism_config",
    "mpirun_config",
    "fp8_config",
)
