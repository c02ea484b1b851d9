"""FSDP1: torch.distributed.fsdp.FullyShardedDataParallel (2.11).

    flat    the flat parameter of one wrapped module: shard, whole, gradient (_flat_param.py)
    unit    what runs around a wrapped module's forward and backward (_runtime_utils.py)
    clip    FullyShardedDataParallel.clip_grad_norm_

It frees memory that other streams still use (record_stream), so on a real GPU blocks come back
later than here, where each kernel is done at once: `allocated` is exact, `reserved` a lower bound.
"""
