"""LLaMA-Factory's YAML.

Source: LLaMA-Factory, src/llamafactory/hparams/*.py; model/adapter.py and model/model_utils/
checkpointing.py (gradient checkpointing is on unless it is disabled).
"""

from typing import Any

from vrambudget.config.foreign.hugging_face import TRAINING_ARGUMENTS
from vrambudget.config.foreign.meanings import (
    Model,
    OneOf,
    Same,
    Switch,
    Table,
    Uncounted,
    ignored,
)

_RANK = 8

LLAMA_FACTORY: Table = {
    **TRAINING_ARGUMENTS,
    "model_name_or_path": Model(),
    "cutoff_len": Same("block"),
    "finetuning_type": OneOf("fine-tuning of the type", {"lora": {}, "full": {}}),
    "lora_rank": Same("lora_rank"),
    "lora_target": Same("lora_targets"),
    "lora_dropout": Same("lora_dropout"),
    "quantization_bit": OneOf(
        "weights of a number of bits:", {"4": {"quant": "nf4"}, "8": {"quant": "int8"}}
    ),
    "quantization_type": Uncounted("4-bit weights of another type", ("nf4",), flag=False),
    "double_quantization": Switch({"double_quant": True}, off={"double_quant": False}),
    "quantization_method": Uncounted("quantisation by", ("bnb", "bitsandbytes"), flag=False),
    "pure_bf16": Switch({"precision": "bf16"}),
    "disable_gradient_checkpointing": Switch({"checkpointing": "none"}),
    "flash_attn": OneOf(
        "attention",
        {"auto": {}, "sdpa": {"attention": "sdpa"}, "disabled": {"attention": "eager"}},
    ),
    "stage": Uncounted("a stage other than pt and sft", ("sft", "pt"), flag=False),
    "packing": Uncounted("packed rows"),
    "neat_packing": Uncounted("packed rows"),
    "enable_liger_kernel": Uncounted("Liger's kernels, which never make the logits", saves=True),
    "use_unsloth": Uncounted("Unsloth", saves=True),
    "use_unsloth_gc": Uncounted("Unsloth's checkpointing", saves=True),
    "use_galore": Uncounted("GaLore", saves=True),
    "use_apollo": Uncounted("APOLLO", saves=True),
    "use_badam": Uncounted("BAdam", saves=True),
    "use_dora": Uncounted("DoRA"),
    "resize_vocab": Uncounted("a vocabulary of another size"),
    "shift_attn": Uncounted("shifted attention"),
    "mixture_of_depths": Uncounted("mixture of depths", flag=False),
    "additional_target": Uncounted("modules that are trained beside the adapters", flag=False),
    "upcast_layernorm": Uncounted("norms in float32"),
    "upcast_lmhead_output": Uncounted("logits in float32"),
    "use_reentrant_gc": Uncounted("checkpointing with re-entry, modelled as without"),
    "fp8": Uncounted("8-bit floating point"),
    **ignored(
        "dataset eval_dataset dataset_dir template max_samples preprocessing_num_workers"
        " preprocessing_batch_size tokenized_path cache_dir adapter_name_or_path media_dir"
        " lora_alpha loraplus_lr_ratio loraplus_lr_embedding mix_strategy interleave_probs"
        " buffer_size val_size image_max_pixels video_max_pixels export_dir rope_scaling"
        " tool_format dataloader_num_workers model_revision swanlab_project swanlab_run_name"
    ),
    **ignored(
        "overwrite_cache plot_loss streaming train_on_prompt mask_history use_fast_tokenizer"
        " use_rslora split_special_tokens low_cpu_mem_usage print_param_status pissa_init"
        " ignore_pad_token_for_loss create_new_adapter compute_accuracy use_swanlab",
        flag=True,
    ),
}

DEFAULTS: dict[str, Any] = {
    "block": 2048,
    "checkpointing": "full",
    "lora_rank": _RANK,
    "lora_targets": "all-linear",
}


def finished(keys: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with what several keys say together."""
    if fields.get("lora_targets") == "all":
        fields["lora_targets"] = "all-linear"
    if keys.get("finetuning_type", "lora") != "lora":
        return {name: fields[name] for name in fields if not name.startswith("lora_")}
    if str(fields["precision"]).startswith("amp-"):  # load_model casts what is trained to float32
        fields["weights"] = str(fields["precision"]).removeprefix("amp-")
    return fields
