"""accelerate's YAML, as `accelerate config` writes it: also for several GPUs.

`num_processes` is the number of ranks; `distributed_type` how they share the work, with the stage
of DeepSpeed or the version of FSDP that the file names. Where no other file says whose loop runs,
it is one with accelerate.

Source: accelerate 1.15, commands/config/config_args.py (ClusterConfig), utils/dataclasses.py
(FullyShardedDataParallelPlugin).
"""

from vrambudget.config.foreign.deepspeed import ZERO
from vrambudget.config.foreign.meanings import (
    Fields,
    MultiGpuOnly,
    OneOf,
    OnlyRanks,
    Same,
    Switch,
    Table,
    Uncounted,
    ignored,
    of_ranks,
    several,
)

_STRATEGIES: dict[str, Fields] = {
    "full_shard": {},
    "shard_grad_op": {"sharding_strategy": "SHARD_GRAD_OP"},
    "true": {"reshard_after_forward": True},
    "false": {"reshard_after_forward": False},
}
_PREFETCHES: dict[str, Fields] = {
    "backward_pre": {"backward_prefetch": "BACKWARD_PRE"},
    "no_prefetch": {"backward_prefetch": "NO_PREFETCH"},
}
FSDP2: Fields = {"parallel": "fsdp2", "reshard_after_forward": True}
"""fully_shard as accelerate calls it: the root is given what the layers are."""

FSDP: Table = {
    **several(
        {
            "version": OneOf("FSDP's version", {"1": {"parallel": "fsdp1"}, "2": FSDP2}),
            "reshard_after_forward": OneOf("a sharding strategy", _STRATEGIES),
            "sharding_strategy": OneOf("a sharding strategy", _STRATEGIES),
            "offload_params": Switch({"cpu_offload": True}),
            "cpu_offload": Switch({"cpu_offload": True}),
            "use_orig_params": Switch({"use_orig_params": True}, off={"use_orig_params": False}),
            "backward_prefetch": OneOf("a prefetch in backward", _PREFETCHES),
            "activation_checkpointing": Switch({"checkpointing": "full"}),
            "auto_wrap_policy": Uncounted(
                "another way to wrap than by layers", ("TRANSFORMER_BASED_WRAP",), flag=False
            ),
            "min_num_params": Uncounted("layers wrapped by their size", flag=False),
            "cpu_ram_efficient_loading": Uncounted(
                "FSDP2 that is given one parameter after another (cpu_ram_efficient_loading)"
            ),
        }
    ),
    **of_ranks(
        "transformer_layer_cls_to_wrap state_dict_type"
        " sync_module_states limit_all_gathers forward_prefetch"
    ),
}
"""Of `fsdp_config`, with or without accelerate's prefix fsdp_."""

_DEEPSPEED: Table = {
    "zero_stage": ZERO["stage"],
    "gradient_accumulation_steps": Same("grad_accum"),
    "gradient_clipping": Same("clip", (0, "auto")),
    "offload_optimizer_device": MultiGpuOnly(
        Uncounted("optimizer states on the host", flag=False, saves=True)
    ),
    "offload_param_device": MultiGpuOnly(Uncounted("weights on the host", flag=False, saves=True)),
    "zero3_init_flag": OnlyRanks(),
    **of_ranks("zero3_save_16bit_model deepspeed_multinode_launcher deepspeed_hostfile"),
}

ACCELERATE: Table = {
    "mixed_precision": OneOf(
        "mixed precision",
        {
            "no": {"precision": "fp32"},
            "bf16": {"precision": "amp-bf16"},
            "fp16": {"precision": "amp-fp16"},
        },
    ),
    "gradient_accumulation_steps": Same("grad_accum"),
    "distributed_type": MultiGpuOnly(
        OneOf(
            "accelerate's distributed type",
            {
                "no": {},
                "multi_gpu": {"parallel": "ddp", "loop": "accelerate"},
                "fsdp": {"parallel": "fsdp1", "loop": "accelerate"},
                "deepspeed": {"loop": "accelerate"},
            },
        )
    ),
    "num_processes": MultiGpuOnly(Same("ranks")),
    "use_cpu": Uncounted("a training on the CPU"),
    "dynamo_config.dynamo_backend": Uncounted(
        "torch.compile", ("NO", "no"), flag=False, saves=True
    ),
    "dynamo_backend": Uncounted("torch.compile", ("NO", "no"), flag=False, saves=True),
    **{f"fsdp_config.fsdp_{name}": meaning for name, meaning in FSDP.items()},
    **{f"deepspeed_config.{name}": meaning for name, meaning in _DEEPSPEED.items()},
    **{f"deepspeed_config.zero_optimization.{name}": meaning for name, meaning in ZERO.items()},
    "deepspeed_config.deepspeed_config_file": OnlyRanks(),
    **of_ranks(
        "num_machines machine_rank gpu_ids main_process_ip main_process_port"
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
