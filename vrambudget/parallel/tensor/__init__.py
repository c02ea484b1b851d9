"""Tensor parallelism: torch.distributed.tensor.parallel on a model's modules (2.11).

    collectives   functional collectives: each into new memory
    redistribute  from one placement to another, and back in backward
    styles        ColwiseParallel, RowwiseParallel, SequenceParallel, PrepareModuleInput
    loss          loss_parallel: cross-entropy of logits that stay cut along the vocabulary
    plan          which module gets which style, and the model's parameters cut

A DTensor is the rank's own part here: what the others have decides nothing. The one exception is
a gradient that does not lie as its parameter does (`vrambudget.parallel.dtensor`).
"""
