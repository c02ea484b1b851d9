"""Any module: its own code runs on tensors that count, and what it asks of torch goes to `ops`.

    tensor.py      the tensor that stands for one on the GPU
    mode.py        where each call of torch arrives, and which way it goes
    rules/         calls that `ops` has an operation for, one file per kind
    derived.py     all other calls: PyTorch's own autograd on the meta device says what they do
    kernels.py     what kernels allocate besides what autograd sees
    known.py       values that the host knows: masks, positions, counts
    patches.py     what no tensor sees: modules, checkpoints, autograd.Function, autocast
    build.py       a model from a configuration, or a live one, on the tape
    live.py        that model as the engine's loops run it

This package needs torch; nothing in it needs a GPU, weights or memory for them.
"""
