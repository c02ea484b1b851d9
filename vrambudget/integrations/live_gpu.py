"""The GPU as it is now: how much of it this job may use.

    free        torch.cuda.mem_get_info()
  + cached      what this process's allocator holds and no tensor uses
  + ours        the model's and the optimizer's own tensors there: the prediction includes them
  + context     this process has one already: the prediction includes it

Without torch, the driver is asked (NVML); without that, there is no GPU.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from vrambudget.config.gpus import Gpu, find_gpu, gpu_with_free
from vrambudget.errors import VramBudgetError
from vrambudget.integrations.live_quant import held_by
from vrambudget.units import format_bytes

_BLOCK = 512  # what the allocator rounds up to


def gpu_now(model: Any = None, optimizer: Any = None) -> tuple[Gpu | None, tuple[str, ...]]:
    """Return this machine's GPU with what is free for a job, and notes for the report."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        try:
            return find_gpu("auto"), ()
        except VramBudgetError:
            return None, ("no NVIDIA GPU was found on this machine: name one with gpu=...",)
    free, _ = torch.cuda.mem_get_info()
    reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    others = max(allocated - _on_gpu(_tensors(model, optimizer)), 0)
    available = free + reserved - others
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    gpu = gpu_with_free(name, capability, available, source="torch.cuda.mem_get_info()")
    with_context = gpu_with_free(
        name, capability, available + gpu.context_bytes, source="torch.cuda.mem_get_info()"
    )
    notes = (f"{format_bytes(others)} of other tensors are on the GPU",) if others else ()
    return with_context, notes


def _tensors(model: Any, optimizer: Any) -> Iterator[Any]:
    """Yield what the prediction also counts: parameters, buffers, gradients, optimizer states."""
    if hasattr(model, "parameters"):
        for parameter in model.parameters():
            yield parameter
            yield from held_by(parameter)
            if parameter.grad is not None:
                yield parameter.grad
        yield from model.buffers()
    for states in getattr(optimizer, "state", {}).values():
        yield from (value for value in states.values() if hasattr(value, "untyped_storage"))


def _on_gpu(tensors: Iterable[Any]) -> int:
    """Return the bytes of their storages on the GPU, each counted once and as a block."""
    sizes = {}
    for tensor in tensors:
        if tensor.is_cuda:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = -(-storage.nbytes() // _BLOCK) * _BLOCK
    return sum(sizes.values())
