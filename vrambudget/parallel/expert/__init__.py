"""Expert parallelism as transformers 5.17 runs it (DistributedConfig, enable_expert_parallel=True).

    styles   what runs around a router and around a layer's experts
    plan     which modules get which, and the experts cut

Each of E ranks has 1/E of every layer's experts, and all else whole. All ranks read the same batch:
a router's choices of other ranks' experts are masked, the rank's own experts run on all N k rows,
and the ranks' results are added up. No row travels, so how tokens spread decides no size.
"""
