"""FSDP2: torch.distributed.fsdp.fully_shard, after torch/distributed/fsdp/_fully_shard (2.11).

    parameter     one parameter, cut along its first dimension (_fsdp_param.py)
    collectives   all-gather and reduce-scatter of a group (_fsdp_collectives.py)
    param_group   the parameters of one fully_shard call (_fsdp_param_group.py)
    state         what a wrapped module's forward and backward call (_fsdp_state.py)
    wrap          fully_shard, and which modules of a model it is called on (_fully_shard.py)

It reads like PyTorch's own, local variables included: what they hold decides peaks. Nothing depends
on time: references and the order of the CPU's calls decide what is free.
"""
