"""Context parallelism: torch.distributed.tensor.experimental.context_parallel (2.11).

    region     what a rank has of a batch inside `with context_parallel(...)`
    ring       attention of the rank's queries to all ranks' keys and values, and its backward
    kernels    the fused kernels that it calls, with what they save and make
    rotation   how keys and values come from the other ranks
    loop       a script's loop with that region around forward and backward

Keys and values of other ranks are not kept: they come round again in backward.
"""
