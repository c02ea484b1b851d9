"""DeepSpeed's JSON: what of it concerns one GPU.

Source: DeepSpeed, docs/_pages/config-json.md.
"""

from vrambudget.config.foreign.meanings import (
    Choice,
    Ranks,
    Same,
    Switch,
    Table,
    Uncounted,
    ignored,
    of_ranks,
)

_OWN = "with float32 copies of weights and gradients in the optimizer, which are"

DEEPSPEED: Table = {
    "train_micro_batch_size_per_gpu": Same("batch"),
    "gradient_accumulation_steps": Same("grad_accum"),
    "gradient_clipping": Same("clip", (0, "auto")),
    "bf16.enabled": Switch({"precision": "bf16"}, noted=f"DeepSpeed's bf16, {_OWN}"),
    "fp16.enabled": Switch({"precision": "fp16"}, noted=f"DeepSpeed's fp16, {_OWN}"),
    "optimizer.type": Choice(
        "the optimizer",
        {"adamw": {"optimizer": "adamw"}, "adam": {"optimizer": "adam"}, "auto": {}},
        {"adamw": "DeepSpeed's own Adam", "adam": "DeepSpeed's own Adam"},
    ),
    "zero_optimization.stage": Uncounted(
        "ZeRO, which divides states between GPUs", flag=False, saves=True
    ),
    "zero_optimization.offload_optimizer.device": Uncounted(
        "optimizer states on the host", flag=False, saves=True
    ),
    "zero_optimization.offload_param.device": Uncounted(
        "weights on the host", flag=False, saves=True
    ),
    "activation_checkpointing.partition_activations": Uncounted("activations divided between GPUs"),
    "activation_checkpointing.cpu_checkpointing": Uncounted("activations on the host", saves=True),
    "compression_training": Uncounted("compression", flag=False),
    "train_batch_size": Ranks(),
    **of_ranks("prescale_gradients gradient_predivide_factor communication_data_type"),
    **ignored("steps_per_print wall_clock_breakdown dump_state memory_breakdown"),
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
