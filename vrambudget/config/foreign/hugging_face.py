"""TrainingArguments, PEFT's LoraConfig, BitsAndBytesConfig and from_pretrained, as a job's fields.

Source: transformers 5.17, training_args.py (TrainingArguments, OptimizerNames), trainer.py
(_OPTIMIZER_HANDLERS); PEFT 0.21, LoraConfig, utils/constants.py.
"""

from collections.abc import Mapping
from typing import Any

from vrambudget.config.fields.adapters import PEFT_TARGETS
from vrambudget.config.foreign.accelerate import FSDP, FSDP2
from vrambudget.config.foreign.deepspeed import ZERO
from vrambudget.config.foreign.meanings import (
    Fields,
    Meaning,
    OneOf,
    Same,
    Switch,
    Table,
    Uncounted,
    ignored,
    of_ranks,
    several,
)

LORA_RANK = 16

OPTIMIZERS: Mapping[str, Fields] = {
    "adamw_torch": {"optimizer": "adamw"},
    "adamw_torch_fused": {"optimizer": "adamw", "optimizer_impl": "fused"},
    "adamw_8bit": {"optimizer": "adamw-8bit"},
    "adamw_bnb_8bit": {"optimizer": "adamw-8bit"},
    "paged_adamw_8bit": {"optimizer": "paged-adamw-8bit"},
    "lion_32bit": {"optimizer": "lion"},
    "lion_8bit": {"optimizer": "lion-8bit"},
    "sgd": {"optimizer": "sgd"},
    "adafactor": {"optimizer": "adafactor"},
}
"""Of OptimizerNames, those with rules here; `adafactor` is torch's outside Trainer's loops."""
OPTIMIZER = OneOf("the optimizer", OPTIMIZERS)

DTYPES: Mapping[str, Fields] = {
    "float32": {"precision": "fp32"},
    "fp32": {"precision": "fp32"},
    "bfloat16": {"precision": "bf16"},
    "bf16": {"precision": "bf16"},
    "float16": {"precision": "fp16"},
    "fp16": {"precision": "fp16"},
    "auto": {},
}

_FLASH = "FlashAttention's own kernels, modelled as PyTorch's flash kernel"
_ATTENTIONS: Mapping[str, Fields] = {
    "sdpa": {"attention": "sdpa"},
    "eager": {"attention": "eager"},
    "flash_attention_2": {"attention": "sdpa"},
    "flash_attention_3": {"attention": "sdpa"},
}
ATTENTION = OneOf(
    "attention", _ATTENTIONS, {name: _FLASH for name in _ATTENTIONS if "flash" in name}
)
FLASH = Switch({"attention": "sdpa"}, noted=_FLASH)

WEIGHTS = OneOf(
    "weights as",
    {name: {"weights": of["precision"]} if of else {} for name, of in DTYPES.items()},
)
MODEL: Table = {"attn_implementation": ATTENTION, "torch_dtype": WEIGHTS, "dtype": WEIGHTS}
"""What from_pretrained takes."""

PEFT: Table = {
    "lora_r": Same("lora_rank"),
    "lora_dropout": Same("lora_dropout"),
    "lora_target_modules": Same("lora_targets"),
    "use_dora": Uncounted("DoRA"),
    "lora_modules_to_save": Uncounted("modules that are trained beside the adapters", flag=False),
    "modules_to_save": Uncounted("modules that are trained beside the adapters", flag=False),
    "lora_bias": Uncounted("trained biases", ("none",), flag=False),
    **ignored("lora_alpha lora_task_type init_lora_weights"),
    **ignored("use_rslora", flag=True),
}

BITSANDBYTES: Table = {
    "load_in_4bit": Switch({"quant": "nf4"}, {"double_quant": False}),
    "load_in_8bit": Switch({"quant": "int8"}),
    "llm_int8_threshold": Uncounted("outliers of another size than", (6.0,), flag=False),
    "llm_int8_has_fp16_weight": Uncounted("16-bit weights that are quantised in each product"),
    "llm_int8_skip_modules": Uncounted("layers that are not quantised:", flag=False),
    "bnb_4bit_quant_type": Uncounted("4-bit weights of another type", ("nf4",), flag=False),
    "bnb_4bit_use_double_quant": Switch({"double_quant": True}, off={"double_quant": False}),
    "use_bnb_nested_quant": Switch({"double_quant": True}, off={"double_quant": False}),
    "bnb_4bit_compute_dtype": Uncounted(
        "4-bit weights multiplied in float32", ("bfloat16", "float16"), flag=False
    ),
    "bnb_4bit_quant_storage": Uncounted("4-bit weights kept as", ("uint8",), flag=False),
}

_EVALUATION: Fields = {"eval_batches": 2}  # from the second on, another changes nothing
EVALUATES = OneOf("evaluation", {"no": {}, "false": {}, "steps": _EVALUATION, "epoch": _EVALUATION})

_COUNTED: dict[str, Meaning] = {
    "per_device_train_batch_size": Same("batch"),
    "train_batch_size": Same("batch"),
    "gradient_accumulation_steps": Same("grad_accum"),
    "max_grad_norm": Same("clip", (0,)),
    "bf16": Switch({"precision": "amp-bf16"}),
    "fp16": Switch({"precision": "amp-fp16"}),
    "gradient_checkpointing": Switch({"checkpointing": "full"}, off={"checkpointing": "none"}),
    "optim": OPTIMIZER,
    "use_cache": Switch({"use_cache": True}),
    "seq_length": Same("block"),
    "label_smoothing_factor": Same("label_smoothing", (0,)),
    "per_device_eval_batch_size": Same("eval_batch"),
    "eval_strategy": EVALUATES,
    "evaluation_strategy": EVALUATES,
    "eval_on_start": Switch({"eval_first": True, **_EVALUATION}),
}

_UNCOUNTED: dict[str, Meaning] = {
    "torch_compile": Uncounted("torch.compile", saves=True),
    "torch_compile_backend": Uncounted("torch.compile", flag=False, saves=True),
    "torch_compile_mode": Uncounted("torch.compile", flag=False, saves=True),
    "use_liger_kernel": Uncounted("Liger's kernels, which never make the logits", saves=True),
    "neftune_noise_alpha": Uncounted("NEFTune's noise on the embeddings", flag=False),
    "optim_target_modules": Uncounted("an optimizer of chosen modules", flag=False),
    "auto_find_batch_size": Uncounted("a batch that is found by trying"),
    "torch_empty_cache_steps": Uncounted("emptying the allocator's cache", flag=False, saves=True),
    "gradient_checkpointing_kwargs.use_reentrant": Uncounted(
        "checkpointing with re-entry, modelled as without"
    ),
    "use_cpu": Uncounted("a training on the CPU"),
}

_GATHERED_ONCE: Fields = {**FSDP2, "reshard_after_forward": False}

_SEVERAL: dict[str, Meaning] = {
    **several(
        {
            "fsdp": OneOf(
                "FSDP as",
                {
                    "false": {},
                    "true": FSDP2,
                    "full_shard": FSDP2,
                    "full_shard auto_wrap": FSDP2,
                    "shard_grad_op": _GATHERED_ONCE,
                    "shard_grad_op auto_wrap": _GATHERED_ONCE,
                    "full_shard auto_wrap offload": {**FSDP2, "cpu_offload": True},
                },
            ),
            "ddp_bucket_cap_mb": Same("bucket_cap_mb"),
            "ddp_find_unused_parameters": Switch({"find_unused_parameters": True}),
            "ddp_static_graph": Switch({"static_graph": True}),
        }
    ),
    **{f"fsdp_config.{name}": meaning for name, meaning in FSDP.items()},
    **{f"fsdp_config.fsdp_{name}": meaning for name, meaning in FSDP.items()},
    **{f"deepspeed.zero_optimization.{name}": meaning for name, meaning in ZERO.items()},
}

TRAINING_ARGUMENTS: Table = {
    **_COUNTED,
    **_UNCOUNTED,
    **_SEVERAL,
    **of_ranks(
        "deepspeed local_rank fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap"
        " ddp_broadcast_buffers"
        " ddp_backend ddp_timeout parallelism_config average_tokens_across_devices"
        " log_on_each_node save_on_each_node log_level_replica"
    ),
    **ignored(
        "output_dir num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs"
        " warmup_steps warmup_ratio optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon"
        " logging_strategy logging_steps logging_dir log_level report_to run_name project"
        " eval_steps eval_delay eval_accumulation_steps"
        " include_for_metrics save_strategy save_steps save_total_limit hub_token hub_model_id"
        " hub_strategy hub_revision metric_for_best_model seed data_seed accelerator_config"
        " dataloader_num_workers dataloader_prefetch_factor dataloader_multiprocessing_context"
        " train_sampling_strategy length_column_name debug resume_from_checkpoint label_names"
        " trackio_space_id trackio_bucket_id trackio_static_space_id liger_kernel_config"
    ),
    **ignored(
        "overwrite_output_dir do_train do_eval do_predict tf32 bf16_full_eval fp16_full_eval"
        " logging_first_step logging_nan_inf_filter disable_tqdm include_num_input_tokens_seen"
        " save_only_model save_safetensors enable_jit_checkpoint push_to_hub hub_private_repo"
        " hub_always_push load_best_model_at_end greater_is_better ignore_data_skip"
        " restore_callback_states_from_checkpoint full_determinism dataloader_drop_last"
        " dataloader_pin_memory dataloader_persistent_workers dataloader_in_order"
        " remove_unused_columns group_by_length skip_memory_metrics prediction_loss_only"
        " eval_do_concat_batches eval_use_gather_object batch_eval_metrics trust_remote_code",
        flag=True,
    ),
}


def settled(fields: Fields) -> dict[str, Any]:
    """Return the fields with the weights' dtype where it is not the precision's own.

    Without autocast the precision is that of the weights; weights in 4 bits are loaded in the dtype
    of their products. Where nothing is evaluated, its batch is left out.
    """
    rest = {name: value for name, value in fields.items() if name != "weights"}
    if "eval_batches" not in rest:
        rest.pop("eval_batch", None)
    weights, precision = fields.get("weights"), str(fields.get("precision"))
    if weights is None or "quant" in fields:
        return rest
    if not precision.startswith("amp-"):
        return {**rest, "precision": weights}
    return rest if weights == "fp32" else {**rest, "weights": weights}


def with_default_targets(fields: Fields, assumed: Fields, family: str) -> Fields:
    """Return the fields with the modules that PEFT adapts in this family, if none are named."""
    if "lora_rank" not in fields or "lora_targets" in {**assumed, **fields}:
        return fields
    targets = PEFT_TARGETS.get(family)
    return fields if targets is None else {**fields, "lora_targets": targets}
