"""Autocast and no_grad: torch's own flags decide, and the engine's follow them.

Modelling code enters and leaves regions as it likes; what an autocast region keeps (its copies of
weights) lives as long as PyTorch's cache, which the outermost exit clears.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vrambudget.engine.context import Autocast, context
from vrambudget.traced.tensor import GPU, TORCH_DTYPE, dtype_of

_region: list[Autocast] = []


def adopt() -> None:
    """Let the engine's flags be torch's, before a call is handled."""
    context.grad_enabled = torch.is_grad_enabled()
    if not torch.is_autocast_enabled(GPU.type):
        context.autocast = None
        return
    dtype = dtype_of(torch.get_autocast_dtype(GPU.type))
    if not _region or _region[-1].dtype is not dtype:
        _region[:] = [Autocast(dtype)]
    context.autocast = _region[-1]


def clear_cache() -> None:
    """End the region: the copies of weights that nobody saved die."""
    _region.clear()
    context.autocast = None


@contextmanager
def as_engine() -> Iterator[None]:
    """Let torch's flags be the engine's inside, as where a loop calls the model."""
    outer, held = context.autocast, list(_region)
    grad_enabled = context.grad_enabled
    kind = GPU.type
    before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    _region[:] = [] if outer is None else [outer]
    torch.set_autocast_enabled(kind, outer is not None)
    if outer is not None:
        torch.set_autocast_dtype(kind, TORCH_DTYPE[outer.dtype])
    try:
        with torch.set_grad_enabled(grad_enabled):
            yield
    finally:
        torch.set_autocast_enabled(kind, before[0])
        torch.set_autocast_dtype(kind, before[1])
        _region[:] = held
        context.autocast, context.grad_enabled = outer, grad_enabled
