"""From main memory to the GPU, a unit at a time: FSDP with `device_id` and `sync_module_states`.

    moved    parameters, then buffers, of modules in breadth-first order, those of inner units
             excepted; a 4-bit weight's scales come with it
    sent     all of them once more, flattened for the broadcast from rank 0

Source: torch/distributed/fsdp/_init_utils.py (_move_module_to_device,
_sync_module_params_and_buffers); bitsandbytes/functional.py (QuantState.to), 0.50.2.
"""

from collections.abc import Container, Mapping, Sequence
from itertools import chain

from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.parallel.ddp import broadcast
from vrambudget.parallel.meta import allocated
from vrambudget.training.kbit import QuantisedLinear
from vrambudget.training.lora import RequiringGradient


def move_from_host(
    module: Module, inner: Container[int], owners: Mapping[int, Sequence[tuple[Module, str]]]
) -> None:
    """Move what a unit has, and flatten it to be sent; `inner` units have moved already."""
    modules, parameters, buffers = [module], list[Parameter](), list[Tensor]()
    for each in modules:
        own = [x for x in each.__dict__.values() if isinstance(x, Tensor)]
        parameters += [x for x in own if isinstance(x, Parameter)]
        buffers += [x for x in own if not isinstance(x, Parameter)]
        children = (
            c.embeddings if isinstance(c, RequiringGradient) else c for c in each.children()
        )
        modules += [child for child in children if id(child) not in inner]
    for parameter in dict.fromkeys(parameters):
        owner = owners[id(parameter)][0][0]
        if isinstance(owner, QuantisedLinear) and owner.weight is parameter:
            owner.pack()
            owner.move_scales()
        parameter.storage = allocated(parameter, "to_device")
    for buffer in dict.fromkeys(buffers):
        buffer.storage = allocated(buffer, "to_device")
    broadcast([*dict.fromkeys(chain(buffers, parameters))])
