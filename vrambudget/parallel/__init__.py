"""Several GPUs: what one rank of a job allocates, in which order and on which stream.

    group       a rank's place among its peers, and how a dimension is cut among them
    meta        building a model without memory, and materialising what one rank keeps of it
    fsdp2       torch.distributed.fsdp.fully_shard, after its own code
    ddp         torch.nn.parallel.DistributedDataParallel, and ZeroRedundancyOptimizer
    expert      expert parallelism, as transformers runs it
    deepspeed   DeepSpeed's ZeRO 1, 2 and 3

What other ranks send changes nothing: PyTorch decides sizes and order from shapes alone. The
buffers of NCCL lie outside PyTorch's allocator and are not on the tape.
"""
