"""`torch.compile`: PyTorch's own compiler runs for a GPU that is not there.

    dispatch.py    what PyTorch's C++ sees of tensors on the GPU
    gpu.py         the GPU that torch.cuda and Inductor ask about
    asked.py       whether a job is compiled; imports nothing else here
    simulated.py   a job, simulated; twice where padding decides
    cache.py       what was compiled once, kept
    process.py     functions called in a process of their own: what ends that one does not end this
    private.py     PyTorch's private names that all this takes, looked up at once
    findings.py    what the compiler reported, for the report
    python_ops.py  operations whose C++ asks what only a GPU could answer
    attention.py   which kernel scaled_dot_product_attention takes, and what it is called with
    inductor.py    Inductor's wrappers run; its kernels are neither built nor launched
    fake_storages.py  storages of fake tensors, on the tape
    accumulated.py gradients that are added up in place
    hidden.py      what kernels allocate besides what the wrapper shows
    model.py       a compiled module, as the engine's loops call it
    build.py       the module of a configuration
    config.py      the configuration of a job that is compiled

Dynamo, AOTAutograd (with its min-cut partitioner) and Inductor are PyTorch's, of the version that
is installed. Only what would touch a GPU is answered here, by Python functions that stand in for
PyTorch's while a model is built or called, and are taken back after it.

What compiles needs torch; nothing in it needs a GPU, weights or memory for them.
"""
