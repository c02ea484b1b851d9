"""The fields of a job as types, so that editors complete and check them: `**fields: Unpack[...]`.

Made by tests/job_fields.py from the fields of `Job`. All are optional.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from vrambudget.config.fields import (
    adapters,
    batches,
    generation,
    modules,
    ranks,
    script,
    software,
    training,
)


class JobFields(TypedDict, total=False):
    """What `estimate` and its kin take of a job."""

    batch: int
    """Sequences per forward pass on this GPU."""
    block: int | None
    """Tokens per sequence (default: the model's own limit, at most 4096); 128:1024 for lengths that
    change from batch to batch.
    """
    shortest: int | None
    """Tokens of the shortest batch: lengths are sampled between it and the block (default: all
    batches are as long as the block).
    """
    draw: int | None
    """Which draw of those lengths: a seed (default: of five, the one that reserves most)."""
    task: batches.Task | None
    """What the model is for, which decides its head (default: the family's own); embed: without a
    head, for --mode forward, or trained on the mean of its states' squares.
    """
    target_len: int | None
    """Tokens per target sequence for seq2seq-lm (default: the block)."""
    image_size: int | None
    """Pixels along each side of an image (default: the model's own)."""
    channels_last: bool
    """Weights and images are channels-last in memory."""
    rows: batches.Rows
    """What the rows of a batch hold: one sequence that fills the block; one with padding and the
    tokenizer's mask; or several, packed, with position_ids that restart.
    """
    attention_mask: batches.AttentionMask | None
    """The mask that the model is called with (default: none for full rows; ones: a tokenizer's).
    """
    causal_mask: batches.CausalMask | None
    """Whether transformers builds the causal mask for sdpa, which it decides from values that it
    reads back (default: what a real GPU answers for these rows).
    """
    mode: training.Mode
    """Train, evaluate under no_grad, generate, or forward: a forward pass without labels."""
    loop: training.LoopName
    """Whose training loop: one written by hand, one with accelerate, Lightning's or transformers'
    Trainer, TRL's SFTTrainer or DPOTrainer, or nanoGPT's train.py.
    """
    precision: training.Precision
    """Autocast (amp-...), or the dtype of the weights themselves."""
    weights: training.WeightsDtype | None
    """Dtype of the weights where not the precision's own, as from_pretrained has it."""
    optimizer: training.Optimizer
    """Optimizer of torch.optim, or of bitsandbytes (lion, ...-8bit)."""
    optimizer_impl: training.OptimizerImpl | None
    """The optimizer's implementation (default: PyTorch's default)."""
    clip: float | None
    """Clip the gradients' norm at this value (default: no clipping)."""
    grad_accum: int
    """Forward and backward passes for each optimizer step."""
    steps: int
    """Optimizer steps to simulate (default: three; where the GPU has less than a fifth to spare, on
    until memory settles).
    """
    label_smoothing: float
    """Label smoothing of the loss: Trainer's label_smoothing_factor; in loop plain, that of torch's
    cross_entropy on the logits.
    """
    zero_grad: script.ZeroGrad
    """Gradients after a step: set to none; kept and zeroed (set_to_none=False); or set to none
    late, between forward and backward.
    """
    forward_returns: script.ForwardReturns
    """What the loop gets of a forward pass: the model's outputs, or, from a function that returns
    it, the loss alone.
    """
    keep_outputs: bool
    """The loop's variables hold the last outputs while the next forward runs."""
    drop_before_step: bool
    """The loop drops output and loss between backward and step: `del outputs, loss`."""
    shared_labels: bool
    """The labels are the input_ids themselves, and no copy: `model(x, labels=x)`."""
    empty_cache: bool
    """Torch.cuda.empty_cache() before every step; in Trainer, when training begins."""
    keep_losses: script.KeepLosses
    """What the loop keeps of every loss: nothing; the loss itself, in a list; or its graph with it
    (backward(retain_graph=True)), which is a leak.
    """
    model_mode: script.ModelMode
    """The mode that the model trains in: eval has no dropout and no checkpointing."""
    eval_batches: int | None
    """Evaluate that many batches after the second step (default: none)."""
    eval_batch: int | None
    """Sequences per batch of the evaluation (default: the loop's own)."""
    eval_first: bool
    """Evaluate before the first step, too."""
    eval_gather: bool
    """Keep the logits of all batches on the GPU and concatenate them."""
    completion_len: int | None
    """Tokens of each row that sft and dpo train on, at its end: the completion (default: all but
    the first).
    """
    precompute_ref_log_probs: bool
    """Dpo: compute the reference's log probabilities before training, which then needs no reference
    model.
    """
    attention: modules.Attention
    """Attention implementation."""
    experts: modules.ExpertsImplementation
    """How transformers runs a mixture of experts."""
    routing: modules.Routing
    """How tokens spread over experts, if that decides memory (--experts eager): uniform, collapsed
    (all tokens to the same few), or the worse of both.
    """
    checkpointing: modules.Checkpointing
    """Full: keep only each layer's input, and run the layer again in backward; selective-2: every
    second layer; selective-op: keep attention's outputs and every second product's (torchtitan).
    """
    use_cache: bool
    """A decoder caches keys and values in training, too (default: as its configuration says, which
    is on unless it says no; Trainer and TRL turn it off).
    """
    dropout: float | None
    """Dropout probability everywhere (default: the model's own)."""
    load: modules.Load | None
    """How weights come to the GPU: from_pretrained with device_map='cuda'; .to('cuda');
    .to('cuda').half() (default: made there, and what is cached is given back).
    """
    compile: bool
    """The model runs under torch.compile: PyTorch's own compiler traces it, which needs torch (pip
    install 'vrambudget[torch]').
    """
    compile_mode: modules.CompileMode
    """The mode of torch.compile: the default is modelled, the others run in `rehearse` and
    `measure` only.
    """
    lora_rank: int | None
    """Train LoRA adapters of this rank instead of the weights, as PEFT does."""
    lora_targets: str | Sequence[str]
    """Modules that get an adapter: all-linear, or names, for example q_proj,v_proj."""
    lora_dropout: float
    """Dropout probability of the adapters' inputs."""
    freeze: str | Sequence[str]
    """Modules or parameters that are not trained, for example transformer.wte."""
    quant: adapters.Quant | None
    """4-bit weights in linear layers, by bitsandbytes (with --lora-rank: QLoRA), or 8-bit ones
    (load_in_8bit).
    """
    double_quant: bool
    """Quantise the scales of 4-bit blocks too, as QLoRA does."""
    prompt: int | None
    """Tokens of each prompt for --mode generate (default: 1024, or what the model has positions for
    besides the new tokens).
    """
    new: int
    """Tokens to generate: max_new_tokens."""
    cache: generation.CacheKind
    """Cache_implementation of keys and values; none: use_cache=False."""
    cache_bits: generation.CacheBits
    """Of a quantised cache: nbits of its cache_config, with quanto as its backend."""
    cache_backend: Literal["quanto"]
    """Of a quantised cache: backend of its cache_config."""
    sample: bool
    """Sample tokens: do_sample=True."""
    temperature: float
    """Divides the logits before tokens are sampled."""
    top_k: int
    """Sample from so many of the most probable tokens; 0: from all."""
    top_p: float
    """Sample from the most probable tokens that together reach this probability."""
    num_beams: int
    """Beams of each prompt: num_beams."""
    num_return: int
    """Answers to each prompt: num_return_sequences."""
    padding: generation.Padding
    """Left: prompts of different lengths, filled up with padding."""
    prefill_chunk: int | None
    """Tokens of the prompt for each forward pass: prefill_chunk_size."""
    return_scores: bool
    """Keep the scores of each new token: output_scores=True."""
    return_logits: bool
    """Keep the logits of each new token: output_logits=True."""
    calls: int
    """Calls of generate, one after the other."""
    logits_to_keep: int
    """Logits of so many last tokens with --mode forward; 0: of all."""
    with_grad: bool
    """--mode forward without torch.no_grad(): the graph is kept."""
    pool: generation.Pool
    """Embeddings made of hidden states, with --mode forward --task embed."""
    ranks: int | None
    """GPUs, one process each; --batch is that of each (--gpu 8xh100 says both)."""
    parallel: str | None
    """How they share the work: ddp, zero1 (ZeroRedundancyOptimizer), fsdp2 (fully_shard), fsdp1
    (FullyShardedDataParallel), DeepSpeed's deepspeed1, zero2, zero3, tp=N (tensor parallel),
    fsdp2+tp=N, pp=N (pipeline), ep=N (experts), cp=N (context parallel), fsdp2+cp=N.
    """
    rank: int | None
    """The rank to report (default: the one that takes most)."""
    bucket_cap_mb: int | None
    """DDP: MiB of gradients in a bucket (default: 25, and 1 in the first)."""
    gradient_as_bucket_view: bool
    """DDP: gradients are views of the buckets."""
    static_graph: bool
    """DDP: the graph never changes."""
    find_unused_parameters: bool
    """DDP: look for parameters that got no gradient."""
    parameters_as_bucket_view: bool
    """ZeroRedundancyOptimizer: parameters are views of buckets."""
    no_sync: bool
    """Accumulate without reducing: no_sync(), set_requires_gradient_sync(False)."""
    param_dtype: training.WeightsDtype | None
    """FSDP2, MixedPrecisionPolicy: the type to gather and compute in."""
    reduce_dtype: training.WeightsDtype | None
    """FSDP2, MixedPrecisionPolicy: the type that gradients are reduced in."""
    output_dtype: training.WeightsDtype | None
    """FSDP2, MixedPrecisionPolicy: the type of a module's outputs."""
    reshard_after_forward: bool | int | str | None
    """FSDP2: true, false, or a number of ranks to reshard to (default: true for layers, false for
    the root).
    """
    fsdp_wrap: ranks.FsdpWrap
    """FSDP2: what fully_shard is called on besides the model itself."""
    replicate: int
    """FSDP2: copies of the shards (HSDP)."""
    cpu_offload: bool
    """FSDP 1 and 2: shards, gradients and states on the host."""
    sharding_strategy: ranks.Strategy
    """FSDP 1: SHARD_GRAD_OP keeps layers gathered until backward."""
    use_orig_params: bool | None
    """FSDP 1: step parts of the original parameters (default: true in Trainer)."""
    forward_prefetch: bool
    """FSDP 1: gather the next layer before this one computes."""
    backward_prefetch: ranks.BackwardPrefetch | None
    """FSDP 1: gather ahead in backward (default: BACKWARD_PRE; in Trainer, no)."""
    reduce_bucket_size: ranks.Auto | int
    """DeepSpeed: elements of the buffer that gradients are reduced in; auto: what Trainer makes of
    the hidden size.
    """
    overlap_comm: bool | None
    """DeepSpeed: reduce while backward runs, in two buffers (default: in stage 3)."""
    contiguous_gradients: bool
    """DeepSpeed: gradients are copied into that buffer."""
    reduce_scatter: bool
    """DeepSpeed: reduce each rank's slices, not the whole buffer."""
    sub_group_size: int
    """ZeRO 3: elements of a rank that are stepped together."""
    prefetch_bucket_size: ranks.Auto | int
    """ZeRO 3: elements that are gathered ahead, for each module."""
    param_persistence_threshold: ranks.Auto | int
    """ZeRO 3: parameters of so many elements or fewer stay whole."""
    model_persistence_threshold: int
    """ZeRO 3: elements of all parameters that stay whole, at most."""
    max_live_parameters: int
    """ZeRO 3: elements that are whole at a time, besides those."""
    max_reuse_distance: int
    """ZeRO 3: parameters needed again within so many elements stay."""
    offload_optimizer: bool
    """DeepSpeed: masters, their gradients and states in main memory, stepped there."""
    offload_param: bool
    """ZeRO 3: weights in main memory while no layer needs them."""
    pin_memory: bool
    """DeepSpeed's offload: main memory that the GPU reads by itself."""
    deepspeed: Literal["0.18", "0.19"]
    """The version of DeepSpeed whose rules are mirrored."""
    sequence_parallel: bool
    """Tensor parallel: norms and residuals are cut along the sequence."""
    loss_parallel: bool
    """Tensor parallel: logits stay cut along the vocabulary."""
    rotate_method: ranks.RotateMethod
    """Context parallel: how keys and values come from other ranks."""
    schedule: ranks.Schedule
    """Pipeline: the order of microbatches."""
    microbatches: int | None
    """Pipeline: equal parts of the batch (default: one for each sequence)."""
    stages_per_rank: int
    """Pipeline: stages of each rank, if interleaved."""
    expandable_segments: bool
    """Run PyTorch with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (Linux)."""
    cudnn_attention: bool
    """Let PyTorch take cuDNN's attention kernel, as it does by default on compute capability 9 and
    10 since 2.11; without, it runs with TORCH_CUDNN_SDPA_DEPRIORITIZED=1.
    """
    driver_addresses: software.DriverAddresses
    """Where the driver puts PyTorch's segments, which decides between free blocks of one size: each
    above the last, as on a virtual GPU; or as NVIDIA's driver for Linux does.
    """
    warm_process: bool
    """The process has trained before, as a notebook's has: the workspaces that cuBLAS keeps lie in
    memory before the model does.
    """
    torch: str
    """The version of PyTorch whose rules are mirrored; name the CUDA of a build that is not PyPI's:
    2.11+cu128.
    """
    transformers: str
    """The version of transformers whose modelling code is mirrored."""
    batch_size: int
    """Batch, as other tools call it."""
    seq_len: int | None
    """Block, as other tools call it."""
    sequence_length: int | None
    """Block, as other tools call it."""
    gradient_accumulation_steps: int
    """Grad_accum, as other tools call it."""
    resolution: int | None
    """Image_size, as other tools call it."""


class RunFields(JobFields, total=False):
    """A job's fields, and files that say how a model is trained."""

    config: str | Path | Sequence[str | Path]
