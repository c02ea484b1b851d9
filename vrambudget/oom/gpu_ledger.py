"""The arithmetic of the GPU at the moment of an out-of-memory message.

    capacity      = free + this process + others
    this process  = reserved + outside     outside: CUDA context, NCCL, cuDNN, modules ...
    reserved      = allocated + cached     cached: held by PyTorch, no tensor in it

A message names some of these; the rest is subtraction, or stays None. Inside a container the driver
does not know the process by the id that PyTorch asks about, so "this process" is missing and the
process itself is among the others: it is the smallest one that has at least what PyTorch reserved.

Not modelled: what the display or the driver keeps (it counts as others), and memory that is freed
between the failed request and the message.
"""

from dataclasses import dataclass
from typing import Self

from vrambudget.oom.message import OomMessage, Printed

_ROUNDING = 3 * 2**30 // 200  # of three numbers in GiB with two decimals


@dataclass(frozen=True, slots=True)
class GpuLedgerRow:
    """One line of the ledger: rows of `depth` d + 1 below a row of depth d are its parts."""

    label: str
    bytes: int
    depth: int


@dataclass(frozen=True, slots=True)
class GpuLedger:
    """Who holds what on the GPU; None if it is not known."""

    capacity: int | None
    free: int | None
    allocated: int | None
    cached: int | None
    this_process: int | None
    own_pid: int | None  # set where this process was found among the others

    @classmethod
    def of(cls, message: OomMessage) -> Self:
        """Return the ledger of one message."""
        allocated, cached = _bytes(message.allocated), _bytes(message.unallocated)
        if cached is None and message.reserved and allocated is not None:
            cached = max(0, message.reserved.bytes - allocated)
        held = (allocated or 0) + (cached or 0)
        this_process, own_pid = _this_process(message, held)
        return cls(
            capacity=_bytes(message.capacity),
            free=_bytes(message.free),
            allocated=allocated,
            cached=cached,
            this_process=this_process,
            own_pid=own_pid,
        )

    @property
    def reserved(self) -> int | None:
        """Return what PyTorch took from the driver."""
        if self.allocated is None or self.cached is None:
            return None
        return self.allocated + self.cached

    @property
    def outside(self) -> int | None:
        """Return what this process uses without PyTorch's allocator (and the cache, if unknown)."""
        if self.this_process is None or self.allocated is None:
            return None
        return self.this_process - self.allocated - (self.cached or 0)

    @property
    def others(self) -> int | None:
        """Return what is neither free nor this process's."""
        if self.this_process is None or self.free is None or self.capacity is None:
            return None
        return max(0, self.capacity - self.free - self.this_process)

    @property
    def unnamed(self) -> int | None:
        """Return what is neither free nor PyTorch's, if it cannot be divided further."""
        if self.capacity is None or self.free is None or self.allocated is None:
            return None
        if self.this_process is not None or self.spilled:
            return None
        return max(0, self.capacity - self.free - self.allocated - (self.cached or 0))

    @property
    def spilled(self) -> bool:
        """Return whether PyTorch holds more than the GPU has (on Windows the driver uses RAM)."""
        return self.capacity is not None and (self.reserved or self.allocated or 0) > self.capacity

    def rows(self) -> tuple[GpuLedgerRow, ...]:
        """Return the ledger as rows, parts below their sums."""
        cache = "" if self.cached is not None else " and cache"
        named = [
            ("the GPU", self.capacity, 0),
            ("free", self.free, 1),
            ("this process", self.this_process, 1),
            ("tensors (allocated by PyTorch)", self.allocated, 2 if self.this_process else 1),
            ("cached by PyTorch, no tensor in it", self.cached, 2 if self.this_process else 1),
            (f"CUDA context, libraries{cache}", self.outside, 2),
            ("other processes" if (self.others or 0) > _ROUNDING else "rounding", self.others, 1),
            (f"CUDA context, other processes{cache}", self.unnamed, 1),
        ]
        return tuple(GpuLedgerRow(label, n, depth) for label, n, depth in named if n is not None)


def _this_process(message: OomMessage, held: int) -> tuple[int | None, int | None]:
    """Return what this process uses, and its id on the host if it was found by that."""
    slack = max((p.half_width for p in (message.allocated, message.reserved) if p), default=0)
    if message.this_process and message.this_process.bytes + slack >= held:  # NVML may say 0
        return max(message.this_process.bytes, held), None
    large = [use for use in message.processes if use.used.bytes + slack >= held]
    if message.this_process or not large or not held:
        return None, None
    own = min(large, key=lambda use: use.used.bytes)
    return max(own.used.bytes, held), own.pid


def _bytes(printed: Printed | None) -> int | None:
    return printed.bytes if printed else None
