"""Pipeline parallelism: torch.distributed.pipelining (2.11).

    stage       a piece of the model, its receive buffers, what it keeps of each microbatch
    schedules   GPipe, 1F1B and interleaved 1F1B: the order of a rank, local variables included
    loop        the training loop around a schedule's step
    cut         which layers are whose

Sends and receives allocate nothing: they read and fill tensors that are there.
"""
