"""How buffers pass from rank to rank around a ring (set_rotate_method).

    allgather    all ranks' buffers at once, [ranks * elements], from the first exchange on
    alltoall     the previous rank's, [elements], at each exchange

Source: torch/distributed/tensor/experimental/_context_parallel/_attention.py (_AllGatherRotater,
_AllToAllRotater), 2.11.
Not modelled: NCCL's hold on what is sent until the wait: the collectives are waited for at once.
"""

from typing import Protocol

from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty


class Rotater(Protocol):
    """One buffer on its way round."""

    def exchange_buffers(self, buffer: Tensor) -> None:
        """Send a buffer [elements] to the next rank, and receive the previous rank's."""

    def next_buffer(self) -> Tensor:
        """Return what was received, [elements]."""


class AllToAll:
    """Keeps the last buffer that it received, until the next one is there."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None

    def exchange_buffers(self, buffer: Tensor) -> None:
        """Receive into new memory."""
        context.operation = "all_to_all_single"
        self._buffer = empty(buffer.shape, buffer.dtype)

    def next_buffer(self) -> Tensor:
        """Return what came last."""
        assert self._buffer is not None  # noqa: S101 - exchanged before
        return self._buffer


class AllGather:
    """Keeps what all ranks sent."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._gathered: Tensor | None = None

    def exchange_buffers(self, buffer: Tensor) -> None:
        """Gather once."""
        if self._gathered is None:
            context.operation = "all_gather_into_tensor"
            self._gathered = empty((self._ranks * buffer.shape[0],), buffer.dtype)

    def next_buffer(self) -> Tensor:
        """Return one rank's part: a view."""
        assert self._gathered is not None  # noqa: S101 - exchanged before
        return self._gathered.viewed((self._gathered.shape[0] // self._ranks,), None)
