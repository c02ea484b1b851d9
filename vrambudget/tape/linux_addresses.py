"""Segments at the addresses that NVIDIA's driver for Linux hands out, where a job names them.

    chunk   a stretch of addresses, a multiple of 32 MiB; each new one lies below all before it
    take    a segment gets the lowest room that is left in the chunks, else a new chunk's beginning
    give    what is given back is room again, and joins the rooms beside it

Addresses decide between free blocks of one size: PyTorch takes the lowest (BlockComparatorSize).

Source: addresses that cudaMalloc returned, in a published log (github.com/rapidsai/rmm/issues/75):
23,246,208 bytes at 0x7f610c000000, 23,246,176 at 0x7f610a000000, 5,811,544 in the room behind them
at 0x7f610b800000, then 39,343,856 twice, 64 MiB below one another. And what a T4 reserved, by a
published script (tests/test_linux_addresses.py). The driver's own source is closed.
"""

from bisect import insort
from typing import Any

from vrambudget.tape.allocator import ADDRESS_MASK, SIZE_SHIFT, CachingAllocator
from vrambudget.tape.segment_sizes import UNIT_BITS
from vrambudget.tape.streams import StreamAllocator

_PAGE = 2_097_152 >> UNIT_BITS  # segments are whole pages of 2 MiB
_CHUNK = 16  # pages
_TOP = 1 << 30  # pages
_APART = _PAGE + 1  # a gap behind each page: blocks of two segments are never neighbours


class _Space:
    """The process's addresses, in pages."""

    def __init__(self) -> None:
        self.lowest = _TOP
        self.gaps: list[tuple[int, int]] = []  # address and pages, sorted

    def take(self, pages: int) -> int:
        """Return the address of a new segment."""
        for i, (at, gap) in enumerate(self.gaps):
            if gap >= pages:
                self.gaps[i : i + 1] = [(at + pages, gap - pages)] if gap > pages else []
                return at
        chunk = -(-pages // _CHUNK) * _CHUNK
        self.lowest -= chunk
        if chunk > pages:
            insort(self.gaps, (self.lowest + pages, chunk - pages))
        return self.lowest

    def give(self, at: int, pages: int) -> None:
        """Let a segment's addresses be room again."""
        insort(self.gaps, (at, pages))
        joined: list[tuple[int, int]] = []
        for start, gap in self.gaps:
            if joined and sum(joined[-1]) == start:
                joined[-1] = joined[-1][0], joined[-1][1] + gap
            else:
                joined.append((start, gap))
        if joined[0][0] == self.lowest:
            self.lowest += joined.pop(0)[1]
        self.gaps = joined


class LinuxAllocator(CachingAllocator):
    """One device's allocator, whose segments lie where the driver for Linux puts them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._space = _Space()

    def state(self) -> tuple[object, ...]:
        """Return what decides, with where storages lie that die later, all that comes next."""
        return (*super().state(), self._space.lowest, *self._space.gaps)

    def _address_of(self, size: int) -> int:
        return self._space.take(size // _PAGE) * _APART

    def _release(self, block: int) -> bool:
        released = super()._release(block)
        if released:
            self._space.give((block & ADDRESS_MASK) // _APART, (block >> SIZE_SHIFT) // _PAGE)
        return released


class LinuxStreamAllocator(StreamAllocator, LinuxAllocator):
    """The same with several streams, and with storages whose bytes come and go."""
