"""A model on the meta device, and what `Module.to_empty` makes of it on the GPU.

A model too large for one GPU is built without memory, cut, and only then given the memory of its
shards, module by module: submodules first, then a module's parameters, then its buffers.

Source: torch/nn/modules/module.py (to_empty, _apply: DTensors are swapped in place, so a tied
parameter is made anew for each module that has it, and the earlier one is freed).
"""

from collections.abc import Callable

from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.tape.events import Purpose, Storage
from vrambudget.training.loading import as_they_stand


def to_empty(module: Module, applied: Callable[[Module], None], *, offload: bool = False) -> None:
    """Give a meta module's parameters and buffers memory; `applied` is called after each module.

    `offload`: parameters get theirs in main memory, buffers nevertheless on the GPU.
    """
    for child in module.children():
        to_empty(child, applied, offload=offload)
    context.tape.module = module.path
    own = [value for value in module.__dict__.values() if isinstance(value, Tensor)]
    for parameter in own:
        if isinstance(parameter, Parameter) and not offload:
            parameter.storage = allocated(parameter, "parameter")
    for buffer in own:
        if not isinstance(buffer, Parameter):
            buffer.storage = allocated(buffer, "buffer")
    applied(module)
    context.tape.module = 0


def move(module: Module) -> None:
    """Module.to(device)."""
    for x in as_they_stand(module):
        if x.storage.tape is not context.tape:  # a tied one is there already
            x.storage = allocated(x, "to_device")


def allocated(x: Tensor, operation: str) -> Storage:
    """Return a storage of this tensor's size on the GPU."""
    nbytes = x.numel * x.dtype.itemsize
    return Storage(context.tape, nbytes, Purpose.WEIGHTS, operation, (x.shape, x.dtype))
