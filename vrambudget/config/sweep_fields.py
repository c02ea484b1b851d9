"""The fields of a job as types, each with one value or with many: what `sweep` takes.

Made by tests/job_fields.py from the fields of `Job`; `JobFields` says what each is.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypedDict


class SweepFields(TypedDict, total=False):
    """The fields of a job, each with one value or with many."""

    batch: int | Iterable[int]
    block: int | Iterable[int | None] | None
    shortest: int | Iterable[int | None] | None
    draw: int | Iterable[int | None] | None
    task: (
        Literal["causal-lm", "masked-lm", "seq-cls", "seq2seq-lm", "image-cls", "embed"]
        | Iterable[
            Literal["causal-lm", "masked-lm", "seq-cls", "seq2seq-lm", "image-cls", "embed"] | None
        ]
        | None
    )
    target_len: int | Iterable[int | None] | None
    image_size: int | Iterable[int | None] | None
    channels_last: bool | Iterable[bool]
    rows: Literal["full", "padded", "packed"] | Iterable[Literal["full", "padded", "packed"]]
    attention_mask: (
        Literal["none", "ones", "padding"]
        | Iterable[Literal["none", "ones", "padding"] | None]
        | None
    )
    causal_mask: Literal["built", "skipped"] | Iterable[Literal["built", "skipped"] | None] | None
    mode: (
        Literal["train", "eval", "generate", "forward"]
        | Iterable[Literal["train", "eval", "generate", "forward"]]
    )
    loop: (
        Literal["plain", "accelerate", "lightning", "trainer", "sft", "dpo", "nanogpt"]
        | Iterable[Literal["plain", "accelerate", "lightning", "trainer", "sft", "dpo", "nanogpt"]]
    )
    precision: (
        Literal["fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"]
        | Iterable[Literal["fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"]]
    )
    weights: (
        Literal["fp32", "bf16", "fp16"] | Iterable[Literal["fp32", "bf16", "fp16"] | None] | None
    )
    optimizer: (
        Literal[
            "adamw",
            "adam",
            "sgd",
            "sgd-momentum",
            "adafactor",
            "muon",
            "lion",
            "lion-8bit",
            "adamw-8bit",
            "paged-adamw-8bit",
            "none",
        ]
        | Iterable[
            Literal[
                "adamw",
                "adam",
                "sgd",
                "sgd-momentum",
                "adafactor",
                "muon",
                "lion",
                "lion-8bit",
                "adamw-8bit",
                "paged-adamw-8bit",
                "none",
            ]
        ]
    )
    optimizer_impl: (
        Literal["foreach", "fused", "for-loop"]
        | Iterable[Literal["foreach", "fused", "for-loop"] | None]
        | None
    )
    clip: float | Iterable[float | None] | None
    grad_accum: int | Iterable[int]
    steps: int | Iterable[int]
    label_smoothing: float | Iterable[float]
    zero_grad: Literal["none", "zeros", "late"] | Iterable[Literal["none", "zeros", "late"]]
    forward_returns: Literal["outputs", "loss"] | Iterable[Literal["outputs", "loss"]]
    keep_outputs: bool | Iterable[bool]
    drop_before_step: bool | Iterable[bool]
    shared_labels: bool | Iterable[bool]
    empty_cache: bool | Iterable[bool]
    keep_losses: Literal["none", "list", "graphs"] | Iterable[Literal["none", "list", "graphs"]]
    model_mode: Literal["train", "eval"] | Iterable[Literal["train", "eval"]]
    eval_batches: int | Iterable[int | None] | None
    eval_batch: int | Iterable[int | None] | None
    eval_first: bool | Iterable[bool]
    eval_gather: bool | Iterable[bool]
    completion_len: int | Iterable[int | None] | None
    precompute_ref_log_probs: bool | Iterable[bool]
    attention: Literal["sdpa", "eager"] | Iterable[Literal["sdpa", "eager"]]
    experts: Literal["grouped_mm", "eager"] | Iterable[Literal["grouped_mm", "eager"]]
    routing: (
        Literal["uniform", "collapsed", "worst"]
        | Iterable[Literal["uniform", "collapsed", "worst"]]
    )
    checkpointing: (
        Literal["none", "full", "selective-2", "selective-op"]
        | Iterable[Literal["none", "full", "selective-2", "selective-op"]]
    )
    use_cache: bool | Iterable[bool]
    dropout: float | Iterable[float | None] | None
    load: (
        Literal["device-map", "to", "to-half"]
        | Iterable[Literal["device-map", "to", "to-half"] | None]
        | None
    )
    compile: bool | Iterable[bool]
    compile_mode: (
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
        | Iterable[
            Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
        ]
    )
    lora_rank: int | Iterable[int | None] | None
    lora_targets: str | Sequence[str] | Iterable[str | Sequence[str]]
    lora_dropout: float | Iterable[float]
    freeze: str | Sequence[str] | Iterable[str | Sequence[str]]
    quant: Literal["nf4", "int8"] | Iterable[Literal["nf4", "int8"] | None] | None
    double_quant: bool | Iterable[bool]
    prompt: int | Iterable[int | None] | None
    new: int | Iterable[int]
    cache: (
        Literal["dynamic", "static", "offloaded", "quantized", "none"]
        | Iterable[Literal["dynamic", "static", "offloaded", "quantized", "none"]]
    )
    cache_bits: Literal[2, 4] | Iterable[Literal[2, 4]]
    cache_backend: Literal["quanto", "hqq"] | Iterable[Literal["quanto", "hqq"]]
    sample: bool | Iterable[bool]
    temperature: float | Iterable[float]
    top_k: int | Iterable[int]
    top_p: float | Iterable[float]
    num_beams: int | Iterable[int]
    num_return: int | Iterable[int]
    padding: Literal["none", "left"] | Iterable[Literal["none", "left"]]
    prefill_chunk: int | Iterable[int | None] | None
    return_scores: bool | Iterable[bool]
    return_logits: bool | Iterable[bool]
    calls: int | Iterable[int]
    logits_to_keep: int | Iterable[int]
    with_grad: bool | Iterable[bool]
    pool: Literal["none", "mean", "cls", "last"] | Iterable[Literal["none", "mean", "cls", "last"]]
    ranks: int | Iterable[int | None] | None
    parallel: str | Iterable[str | None] | None
    rank: int | Iterable[int | None] | None
    bucket_cap_mb: int | Iterable[int | None] | None
    gradient_as_bucket_view: bool | Iterable[bool]
    static_graph: bool | Iterable[bool]
    find_unused_parameters: bool | Iterable[bool]
    parameters_as_bucket_view: bool | Iterable[bool]
    no_sync: bool | Iterable[bool]
    param_dtype: (
        Literal["fp32", "bf16", "fp16"] | Iterable[Literal["fp32", "bf16", "fp16"] | None] | None
    )
    reduce_dtype: (
        Literal["fp32", "bf16", "fp16"] | Iterable[Literal["fp32", "bf16", "fp16"] | None] | None
    )
    output_dtype: (
        Literal["fp32", "bf16", "fp16"] | Iterable[Literal["fp32", "bf16", "fp16"] | None] | None
    )
    reshard_after_forward: bool | int | str | Iterable[bool | int | str | None] | None
    fsdp_wrap: (
        Literal["blocks", "root", "torchtitan", "torchtitan-2024", "accelerate"]
        | Iterable[Literal["blocks", "root", "torchtitan", "torchtitan-2024", "accelerate"]]
    )
    replicate: int | Iterable[int]
    cpu_offload: bool | Iterable[bool]
    sharding_strategy: (
        Literal["FULL_SHARD", "SHARD_GRAD_OP"] | Iterable[Literal["FULL_SHARD", "SHARD_GRAD_OP"]]
    )
    use_orig_params: bool | Iterable[bool]
    forward_prefetch: bool | Iterable[bool]
    backward_prefetch: (
        Literal["BACKWARD_PRE", "NO_PREFETCH"]
        | Iterable[Literal["BACKWARD_PRE", "NO_PREFETCH"] | None]
        | None
    )
    reduce_bucket_size: Literal["auto"] | int | Iterable[Literal["auto"] | int]
    overlap_comm: bool | Iterable[bool | None] | None
    contiguous_gradients: bool | Iterable[bool]
    reduce_scatter: bool | Iterable[bool]
    sub_group_size: int | Iterable[int]
    prefetch_bucket_size: Literal["auto"] | int | Iterable[Literal["auto"] | int]
    param_persistence_threshold: Literal["auto"] | int | Iterable[Literal["auto"] | int]
    model_persistence_threshold: int | Iterable[int]
    max_live_parameters: int | Iterable[int]
    max_reuse_distance: int | Iterable[int]
    offload_optimizer: bool | Iterable[bool]
    offload_param: bool | Iterable[bool]
    pin_memory: bool | Iterable[bool]
    deepspeed: Literal["0.18", "0.19"] | Iterable[Literal["0.18", "0.19"]]
    sequence_parallel: bool | Iterable[bool]
    loss_parallel: bool | Iterable[bool]
    rotate_method: Literal["allgather", "alltoall"] | Iterable[Literal["allgather", "alltoall"]]
    schedule: (
        Literal["GPipe", "1F1B", "Interleaved1F1B"]
        | Iterable[Literal["GPipe", "1F1B", "Interleaved1F1B"]]
    )
    microbatches: int | Iterable[int | None] | None
    stages_per_rank: int | Iterable[int]
    expandable_segments: bool | Iterable[bool]
    cudnn_attention: bool | Iterable[bool]
    driver_addresses: Literal["rising", "linux"] | Iterable[Literal["rising", "linux"]]
    warm_process: bool | Iterable[bool]
    torch: str | Iterable[str]
    transformers: str | Iterable[str]
    batch_size: int | Iterable[int]
    seq_len: int | Iterable[int | None] | None
    sequence_length: int | Iterable[int | None] | None
    gradient_accumulation_steps: int | Iterable[int]
