"""nanoGPT's configuration: the names of train.py, as `--batch_size=12` on its command line.

Source: nanoGPT, train.py: dtype is autocast's, the optimizer fused, gradients clipped at 1.0.
"""

from vrambudget.config.foreign.meanings import OneOf, Same, Table, Uncounted, ignored

NANOGPT: Table = {
    "batch_size": Same("batch"),
    "block_size": Same("block"),
    "gradient_accumulation_steps": Same("grad_accum"),
    "grad_clip": Same("clip", (0,)),
    "dropout": Same("dropout"),
    "dtype": OneOf(
        "dtype",
        {
            "float32": {"precision": "fp32"},
            "bfloat16": {"precision": "amp-bf16"},
            "float16": {"precision": "amp-fp16"},
        },
    ),
    "compile": Uncounted("torch.compile", saves=True),
    **ignored(
        "out_dir eval_interval log_interval eval_iters init_from wandb_project wandb_run_name"
        " dataset learning_rate max_iters weight_decay beta1 beta2 warmup_iters lr_decay_iters"
        " min_lr backend device"
    ),
    **ignored("eval_only always_save_checkpoint wandb_log decay_lr", flag=True),
}
