"""DeepSpeed's JSON: what of it concerns one GPU, and what several.

`optimizer.params` and "auto" are another's to say: sizes that are "auto" are those that Trainer and
accelerate put there.

Source: DeepSpeed, docs/_pages/config-json.md; runtime/zero/config.py, runtime/config.py;
0.18.9 and 0.19.8.
"""

from vrambudget.config.foreign.meanings import (
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

_OWN = "float32 copies of weights and gradients in the optimizer, modelled on multiple GPUs alone"

_STAGES = OneOf(
    "DeepSpeed's ZeRO stage",
    {f"{stage}": {"parallel": f"deepspeed{stage}"} for stage in (1, 2, 3)},
)
_SIZES = (
    *("sub_group_size", "max_live_parameters", "max_reuse_distance", "prefetch_bucket_size"),
    *("param_persistence_threshold", "model_persistence_threshold"),
)

ZERO: Table = several(
    {
        "stage": _STAGES,
        "reduce_bucket_size": Same("reduce_bucket_size", off=(), whole=True),
        "overlap_comm": Switch({"overlap_comm": True}, off={"overlap_comm": False}),
        "contiguous_gradients": Switch({}, off={"contiguous_gradients": False}),
        "reduce_scatter": Switch({}, off={"reduce_scatter": False}),
        "sub_group_size": Same("sub_group_size", whole=True),
        **{f"stage3_{name}": Same(name, off=(), whole=True) for name in _SIZES},
        "offload_optimizer.device": OneOf(
            "optimizer states on", {"none": {}, "cpu": {"offload_optimizer": True}}
        ),
        "offload_optimizer.pin_memory": Switch({}, off={"pin_memory": False}),
        "offload_optimizer.ratio": Uncounted(
            "a part of the optimizer states on the host", (1, 1.0), flag=False
        ),
        "offload_param.device": OneOf("weights on", {"none": {}, "cpu": {"offload_param": True}}),
        "round_robin_gradients": Uncounted("gradients given out in turn (round_robin_gradients)"),
        "zero_hpz_partition_size": Uncounted("a second partition (ZeRO++ hpZ)", (1,), flag=False),
        "zero_quantized_weights": Uncounted("quantised weights (ZeRO++ qwZ)"),
        "zero_quantized_gradients": Uncounted("quantised gradients (ZeRO++ qgZ)"),
        "mics_shard_size": Uncounted("MiCS", (-1,), flag=False),
        "use_all_reduce_for_fetch_params": Uncounted("gathering by all-reduce"),
        "zenflow": Uncounted("ZenFlow", flag=False),
    }
)
"""Of `zero_optimization`."""

DEEPSPEED: Table = {
    "train_micro_batch_size_per_gpu": Same("batch"),
    "gradient_accumulation_steps": Same("grad_accum"),
    "gradient_clipping": Same("clip", (0, "auto")),
    "bf16.enabled": Switch({"precision": "bf16"}, noted=f"DeepSpeed's bf16: {_OWN}"),
    "fp16.enabled": Switch({"precision": "fp16"}, noted=f"DeepSpeed's fp16: {_OWN}"),
    "optimizer.type": OneOf(
        "the optimizer",
        {"adamw": {"optimizer": "adamw"}, "adam": {"optimizer": "adam"}, "auto": {}},
        {"adamw": "DeepSpeed's own Adam", "adam": "DeepSpeed's own Adam"},
    ),
    "activation_checkpointing.partition_activations": Uncounted("activations divided between GPUs"),
    "activation_checkpointing.cpu_checkpointing": Uncounted("activations on the host", saves=True),
    "compression_training": Uncounted("compression", flag=False),
    "train_batch_size": OnlyRanks(),
    **{f"zero_optimization.{name}": meaning for name, meaning in ZERO.items()},
    **several(
        {
            "communication_data_type": Uncounted("another type to send in", flag=False),
            "data_types.grad_accum_dtype": Uncounted("another type to accumulate in", flag=False),
            "pipeline": Uncounted("DeepSpeed's pipelines", flag=False),
            "sequence_parallel_size": Uncounted("sequence parallelism", (1,), flag=False),
            "tensor_parallel.autotp_size": Uncounted("tensor parallelism", (1,), flag=False),
        }
    ),
    **of_ranks("prescale_gradients gradient_predivide_factor"),
    **ignored("steps_per_print wall_clock_breakdown dump_state memory_breakdown"),
    **ignored("zero_allow_untested_optimizer zero_force_ds_cpu_optimizer"),
}

IGNORED_GROUPS = (
    "scheduler",
    "optimizer.params",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "flops_profiler",
    "aio",
    "bf16",
    "fp16",
    "comms_logger",
)
RANKS_GROUPS = ("zero_optimization",)
