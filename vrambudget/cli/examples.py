"""What --help shows of a command: the options that most people use, and examples."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "estimate": (
        "vrambudget gpt2 --batch 8 --block 1024 --gpu 12GB",
        "vrambudget llama-3.1-8b --qlora --checkpointing full --block 2048 --gpu 24GB",
        "vrambudget path/to/config.json --batch 4 --gpu a100-80gb -o report.html",
    ),
    "validate": (
        "vrambudget validate measured.jsonl",
        "vrambudget validate tests/records --by family --by card",
    ),
    "fit": (
        "vrambudget fit gpt2 --block 1024 --gpu 12GB",
        "vrambudget fit qwen2.5-7b --lora --longest-block --gpu 24GB --margin 512MiB",
    ),
    "plan": (
        "vrambudget plan llama-3.1-8b --gpu 24GB --block 2048",
        "vrambudget plan qwen2.5-7b --gpu 24GB --goal lora --per-step 64",
        "vrambudget plan llama-3.1-8b --gpu 4x24GB --block 2048",
        "vrambudget plan llama-3.2-1b --gpu 12GB --as axolotl -o recipe.yaml",
    ),
    "check": (
        "vrambudget check job.toml",
        "vrambudget check configs/sft.yaml configs/dpo.yaml --gpu 24GB",
    ),
    "run": (
        "vrambudget run qwen3-8b --gpu 12GB",
        "vrambudget run llama-3.3-70b:Q4_K_M --gpu 2x24GB --context 16384",
        "vrambudget run gpt-oss-120b --gpu 24GB --ram 64GB",
        "vrambudget run ./model-00001-of-00005.gguf --gpu auto",
        "vrambudget run org/name-GGUF:Q5_K_M --gpu 16GB",
    ),
    "picture": (
        "vrambudget flux-dev --train lora --rank 16 --resolution 1024 --gpu 24GB",
        "vrambudget sdxl --batch 4 --offload model --gpu 12GB",
        "vrambudget wan2.1-1.3b --frames 81 --resolution 480x832 --gpu 16GB",
    ),
    "serve": (
        "vrambudget serve llama-3.1-8b --gpu h100 --context 8192",
        "vrambudget serve llama-3.1-8b --gpu h100 --engine sglang --mem-fraction-static 0.85",
        "vrambudget serve gpt-oss-20b --gpu h100 --max-model-len 8192 --rehearse",
    ),
    "sweep": (
        "vrambudget sweep gpt2 --batch 1:64:x2 --precision fp32,amp-bf16 --gpu 12GB 24GB",
        "vrambudget sweep gpt2 --batch 1:100 --block 8:1024:8 --by requested -o sweep.csv",
    ),
    "explain": (
        "vrambudget explain train.log",
        "vrambudget explain train.log --model gpt2 --batch 64 --block 1024",
    ),
    "measure": ("vrambudget measure gpt2 --batch 2 --block 256 -o measured.jsonl",),
    "compare": ("vrambudget compare gpt2 --batch 2 --block 256 --gpu t4 --events",),
    "record": ("vrambudget record path/to/config.json -o team.program",),
    "rehearse": (
        'vrambudget rehearse --gpu "RTX 3060" -- python train.py --batch_size=64',
        "vrambudget rehearse --gpu 12GB gpt2 --batch 8",
    ),
    "models": ("vrambudget models", "vrambudget models --format csv"),
    "gpus": ("vrambudget gpus", "vrambudget gpus --format json"),
    "page": ("vrambudget page", "vrambudget page -o site/"),
    "doctor": ("vrambudget doctor",),
    "completion": ('eval "$(vrambudget completion bash)"',),
}

_JOB = ("batch", "block", "precision", "optimizer", "checkpointing", "lora_rank", "quant")
COMMON: dict[str, tuple[str, ...]] = {
    "estimate": ("help", "gpu", *_JOB, "parallel", "advise", "output"),
    "fit": ("help", "gpu", "margin", "longest_block", *_JOB),
    "plan": (
        "help",
        "gpu",
        "goal",
        "block",
        "per_step",
        "margin",
        "nodes",
        "loop",
        "tool",
        "choice",
    ),
    "sweep": ("help", "gpu", *_JOB, "by", "output"),
    "serve": (
        "help",
        "gpu",
        "engine",
        "context",
        "kv_cache_dtype",
        "tensor_parallel_size",
        "output",
    ),
    "run": ("help", "gpu", "ram", "context", "cache_type_k", "cache_type_v", "output"),
    "explain": ("help", "gpu", "model", "batch", "block", "precision", "optimizer", "output"),
    "measure": ("help", "suite", *_JOB, "output"),
    "compare": ("help", "gpu", "events", *_JOB),
    "rehearse": (
        "help",
        "gpu",
        "steps",
        "ranks",
        "rank",
        "batch_from",
        "values",
        "timeout",
        "output",
    ),
}
"""By command, the options that its --help shows; `--help all` shows the others, too."""
