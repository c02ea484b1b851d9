"""torchtune's YAML: the recipes' configurations.

Source: torchtune 0.6, recipes/configs and recipes/*_single_device.py. Its models are its own code:
what is counted are the same models as transformers has them.
"""

from typing import Any

from vrambudget.config.foreign.hugging_face import DTYPES
from vrambudget.config.foreign.meanings import (
    Ignored,
    Model,
    OneOf,
    Same,
    Switch,
    Table,
    Uncounted,
    ignored,
    of_ranks,
)

_ADAMW = {"optimizer": "adamw"}

TORCHTUNE: Table = {
    "model._component_": Model(),
    "model.lora_rank": Same("lora_rank"),
    "model.lora_dropout": Same("lora_dropout"),
    "model.lora_attn_modules": Ignored(),  # `finished` puts them together
    "model.apply_lora_to_mlp": Ignored(),
    "model.apply_lora_to_output": Uncounted("an adapter of the head"),
    "model.use_dora": Uncounted("DoRA"),
    "model.quantize_base": Switch({"quant": "nf4"}),
    "tokenizer.max_seq_len": Same("block"),
    "batch_size": Same("batch"),
    "gradient_accumulation_steps": Same("grad_accum"),
    "clip_grad_norm": Same("clip"),
    "dtype": OneOf("dtype", DTYPES),
    "optimizer._component_": OneOf(
        "the optimizer",
        {
            "torch.optim.adamw": _ADAMW,
            "torch.optim.adam": {"optimizer": "adam"},
            "torch.optim.sgd": {"optimizer": "sgd"},
            "bitsandbytes.optim.adamw8bit": {"optimizer": "adamw-8bit"},
            "bitsandbytes.optim.pagedadamw8bit": {"optimizer": "paged-adamw-8bit"},
            "bitsandbytes.optim.pagedadamw": {},
        },
        {"bitsandbytes.optim.pagedadamw": "the optimizer bitsandbytes.optim.PagedAdamW"},
    ),
    "optimizer.fused": Switch({"optimizer_impl": "fused"}),
    "optimizer_in_bwd": Uncounted("an optimizer that steps within backward", saves=True),
    "enable_activation_checkpointing": Switch(
        {"checkpointing": "full"}, off={"checkpointing": "none"}
    ),
    "enable_activation_offloading": Uncounted("activations on the host", saves=True),
    "compile": Uncounted("torch.compile", saves=True),
    "loss._component_": Uncounted(
        "a loss that makes the logits in parts",
        ("torch.nn.CrossEntropyLoss",),
        flag=False,
        saves=True,
    ),
    "dataset.packed": Uncounted("packed rows"),
    "ac_mode": Uncounted("selective checkpointing", ("full",), flag=False, saves=True),
    **of_ranks("fsdp_cpu_offload tensor_parallel_dim data_parallel_shard_dim"),
    **ignored(
        "model.lora_alpha epochs max_steps_per_epoch output_dir log_every_n_steps seed shuffle"
        " device optimizer.lr optimizer.weight_decay resume_from_checkpoint log_level"
        " log_peak_memory_stats save_adapter_weights_only model_type"
    ),
}

IGNORED_GROUPS = (
    "checkpointer",
    "tokenizer",
    "dataset",
    "lr_scheduler",
    "metric_logger",
    "profiler",
    "sampler",
)
"""What lies under these keys decides no memory, but for the keys of the table."""

DEFAULTS: dict[str, Any] = {"batch": 1, "optimizer": "adamw"}

_MODULES = {"output_proj": "o_proj"}
_MLP = ("gate_proj", "up_proj", "down_proj")


def model_of(component: str) -> str:
    """Return a model's name: torchtune.models.llama3_1.lora_llama3_1_8b is llama3_1_8b."""
    builder = component.rpartition(".")[2]
    return builder.removeprefix("q").removeprefix("lora_") if "lora_" in builder else builder


def finished(keys: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the adapters' modules, and what the model's builder says."""
    if "lora_" not in str(keys.get("model._component_", "")):
        return fields
    named = keys.get("model.lora_attn_modules") or ()
    modules = [_MODULES.get(name, name) for name in dict.fromkeys(named)]
    modules += _MLP if keys.get("model.apply_lora_to_mlp") else ()
    if modules:
        fields["lora_targets"] = tuple(modules)
    if ".qlora_" in str(keys["model._component_"]):
        fields["quant"] = "nf4"
    return fields
