"""axolotl's YAML.

Source: axolotl, docs/config-reference and utils/schemas/config.py; core/builders/base.py for what
it leaves to TrainingArguments.
"""

from typing import Any

from vrambudget.config.foreign.accelerate import FSDP
from vrambudget.config.foreign.hugging_face import (
    ATTENTION,
    BITSANDBYTES,
    FLASH,
    LORA_RANK,
    OPTIMIZER,
    PEFT,
    TRAINING_ARGUMENTS,
)
from vrambudget.config.foreign.meanings import (
    Model,
    OneOf,
    Same,
    Switch,
    Table,
    Uncounted,
    ignored,
    of_ranks,
)

AXOLOTL: Table = {
    **TRAINING_ARGUMENTS,
    **PEFT,
    **BITSANDBYTES,
    "base_model": Model(),
    "load_in_4bit": Switch({"quant": "nf4"}),  # loaders/model.py: with double quantisation
    "bnb_config_kwargs.bnb_4bit_use_double_quant": BITSANDBYTES["bnb_4bit_use_double_quant"],
    "micro_batch_size": Same("batch"),
    "sequence_len": Same("block"),
    "optimizer": OPTIMIZER,
    "adapter": OneOf(
        "an adapter", {"lora": {"lora_rank": LORA_RANK}, "qlora": {"lora_rank": LORA_RANK}}
    ),
    "lora_target_linear": Switch({"lora_targets": "all-linear"}),
    "bf16": Switch({"precision": "amp-bf16", "weights": "bf16"}),
    "fp16": Switch({"precision": "amp-fp16", "weights": "fp16"}),
    "bfloat16": Switch({"precision": "bf16"}),
    "float16": Switch({"precision": "fp16"}),
    "attn_implementation": ATTENTION,
    "flash_attention": FLASH,
    "sdp_attention": Switch({"attention": "sdpa"}),
    "eager_attention": Switch({"attention": "eager"}),
    "sample_packing": Uncounted("packed rows"),
    "eval_sample_packing": Uncounted("packed rows"),
    "val_set_size": Switch({"eval_batches": 2}),
    "xformers_attention": Uncounted("xFormers' attention"),
    "unfrozen_parameters": Uncounted("parameters chosen by name", flag=False),
    "rl": Uncounted("reinforcement learning or preferences", flag=False),
    "lora_mlp_kernel": Uncounted("axolotl's kernels for LoRA", saves=True),
    "lora_qkv_kernel": Uncounted("axolotl's kernels for LoRA", saves=True),
    "lora_o_kernel": Uncounted("axolotl's kernels for LoRA", saves=True),
    "peft_use_dora": Uncounted("DoRA"),
    "lora_fan_in_fan_out": TRAINING_ARGUMENTS["tf32"],
    "tokens": Uncounted("tokens that are added to the vocabulary", flag=False),
    "s2_attention": Uncounted("shifted attention"),
    "plugins": Uncounted("plugins", flag=False),
    "fsdp_version": FSDP["version"],
    **of_ranks("tensor_parallel_size context_parallel_size sequence_parallel_degree"),
    **ignored(
        "tokenizer_type model_type tokenizer_config datasets test_datasets chat_template"
        " dataset_prepared_path lora_model_dir wandb_project wandb_entity wandb_watch wandb_name"
        " wandb_log_model num_epochs lr_scheduler early_stopping_patience warmup_ratio"
        " evals_per_epoch saves_per_epoch eval_table_size eval_max_new_tokens special_tokens"
        " loss_watchdog_threshold loss_watchdog_patience lora_target_parameters hub_model_id"
        " dataset_processes eval_steps save_steps shuffle_merged_datasets base_model_config"
        " revision_of_model mlflow_tracking_uri mlflow_experiment_name use_tensorboard"
        " excess_length_strategy"
    ),
    **ignored(
        "strict pad_to_sequence_len train_on_inputs is_llama_derived_model save_first_step"
        " is_mistral_derived_model is_qwen_derived_model auto_resume_from_checkpoints"
        " tokenizer_use_fast tokenizer_legacy",
        flag=True,
    ),
}

DEFAULTS: dict[str, Any] = {"batch": 1, "block": 512, "lora_dropout": 0.0}
