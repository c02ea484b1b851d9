"""Replay of the caching allocator with `expandable_segments:True`: pools that grow page by page.

It is fed and read as `CachingAllocator`, whose rules it keeps but for these (torch 2.11):

    pool        one for each stream, small and large: addresses, 1.125 times the GPU's memory, of
                which pages are mapped as they are needed: 2 MiB in a small pool, 20 MiB in a large
                one; reserved is what is mapped. Where that stretch has no room another one begins;
                past the GPU's memory there is no end, as on a GPU that is large enough
    find        best fit, but a free block before unmapped pages counts as if all were mapped
    grow        where none is: the lowest address where free blocks and unmapped pages in a row are
                enough; only what lacks is mapped, so a free block at the end is grown
    split       in both pools, if 512 bytes or more are left over
    GPU full    every page that is wholly free is unmapped, and asked for once more; then out of
                memory. Emptying the cache unmaps them, too

So allocated is what was asked for, rounded up to 512 bytes each, wherever it lies.

Source: c10/cuda/CUDACachingAllocator.cpp: get_free_block, find_expandable_block, map_block,
try_allocate_expandable_block, should_split, unmap_block, release_blocks; ExpandableSegment.
tests/records/expandable.jsonl holds it against what PyTorch itself did.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from vrambudget.errors import TooLargeError
from vrambudget.tape.allocator import ADDRESS_MASK, SIZE_SHIFT, CachingAllocator
from vrambudget.tape.segment_sizes import LARGE_SEGMENT, SMALL, UNIT_BITS
from vrambudget.units import format_bytes

# As in `allocator`, sizes and addresses count units of 512 bytes, and a block is one integer.
_SMALL_PAGE = 2_097_152 >> UNIT_BITS  # kSmallBuffer
POOL_ADDRESSES = LARGE_SEGMENT << 24  # pools lie so far from one another
_ENDLESS = 1 << 39
_MOST_STREAMS = ADDRESS_MASK // POOL_ADDRESSES // 2


class ExpandableAllocator(CachingAllocator):
    """One device's allocator with expandable segments; `gpu_bytes`: what the driver reports.

    `capacity_bytes` as in `CachingAllocator`; the stretches of addresses do not depend on it.
    """

    def __init__(self, gpu_bytes: int, capacity_bytes: int | None = None) -> None:
        self._gpu = gpu_bytes >> UNIT_BITS
        self._stretch = (gpu_bytes + gpu_bytes // 8) >> UNIT_BITS
        self._all_pools: list[_Pool] = []
        super().__init__(capacity_bytes)

    def new_pools(self) -> tuple["_Pool", "_Pool"]:
        """Return a stream's pools with addresses of their own."""
        number = len(self._all_pools)
        if number == 2 * _MOST_STREAMS:
            raise TooLargeError(f"more than {_MOST_STREAMS} streams with segments that expand")
        base, stretch = number * POOL_ADDRESSES, self._stretch
        small = _Pool(self, base, _SMALL_PAGE, stretch)
        large = _Pool(self, base + POOL_ADDRESSES, LARGE_SEGMENT, stretch)
        self._all_pools += small, large
        return small, large

    def empty_cache(self) -> None:
        """Unmap every page that is wholly free: `torch.cuda.empty_cache()`."""
        for pool in reversed(self.pools):
            pool.unmap_free_pages()

    def serve(self, events: Sequence[int], sizes: Sequence[int], position: int) -> None:
        """Replay all these events, the first of which is at a position of the tape."""
        placed = self.placed
        small, large = self.pools
        for number, event in enumerate(events):
            if event >= 0:
                if sizes[event]:
                    self._allocate(position + number, event, sizes[event])
            elif block := placed[~event]:
                size = block >> SIZE_SHIFT
                (small if size <= SMALL else large).add(block & ADDRESS_MASK, size)
                self._allocated -= size
                self._requested_bytes -= sizes[~event]

    def segments(self) -> dict[int, int]:
        """Return the sizes of the stretches that are mapped now, by address, in bytes."""
        return {
            at << UNIT_BITS: size << UNIT_BITS
            for pool in self._all_pools
            for at, size in pool.mapped()
        }

    def resize(self, address: int, change: int) -> bool:
        """Map (or, where `change` is negative, unmap) pages; False where the GPU has no room."""
        if change > 0 and not self._is_within_limit(change):
            return False
        self.segment_changes.append((address << UNIT_BITS, change << UNIT_BITS))
        self._reserved += change
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        return True

    def _free_blocks(self) -> tuple[object, ...]:
        return tuple((tuple(pool.free), tuple(pool.unmapped.items())) for pool in self.pools)

    def is_beyond_gpu(self, need: int) -> bool:
        """Whether what is mapped and `need` are more than this GPU has: another is meant."""
        return self._reserved + need > self._gpu

    def _allocate(self, position: int, storage: int, asked: int) -> None:
        need = (asked + 511) >> UNIT_BITS
        pool = self.pools[need > SMALL]
        address = pool.best_fit(need)
        if address is None:
            address = pool.grown_to(need)
        if address is None:
            self.empty_cache()
            self.num_alloc_retries += 1
            address = pool.grown_to(need)
        if address is None:
            self._raise_out_of_memory(position, asked)
            return
        pool.take(address, need)
        self.placed[storage] = (need << SIZE_SHIFT) + address
        self._allocated += need
        if self._allocated > self._peak_allocated:
            self._peak_allocated, self.peak_event = self._allocated, position
        self._requested_bytes += asked
        if self._requested_bytes > self._peak_requested_bytes:  # noqa: PLR1730 - max() is a call
            self._peak_requested_bytes = self._requested_bytes


class _Pool:
    """Free blocks and unmapped pages of one pool; what is neither is allocated."""

    def __init__(self, owner: ExpandableAllocator, base: int, page: int, stretch: int) -> None:
        self.owner, self.base, self.page = owner, base, page  # base is a multiple of page
        self.stretch = -(-stretch // page) * page
        self.stretches: dict[int, int] = {}  # size by address, whole pages
        self.free: list[int] = []  # sorted: by size, then by address
        self.by_start: dict[int, int] = {}  # sizes of free blocks
        self.by_end: dict[int, int] = {}
        self.unmapped: dict[int, int] = {}  # size by address, whole pages

    def best_fit(self, need: int) -> int | None:
        """Return the address of the free block to take, None where none is enough.

        Those behind it are no smaller, so it is taken at once where no unmapped pages follow it.
        """
        free = self.free
        at = bisect_left(free, need << SIZE_SHIFT)
        if at == len(free):
            return None
        block = free[at]
        if (block & ADDRESS_MASK) + (block >> SIZE_SHIFT) in self.unmapped:
            size = self._with_unmapped(block)
            while at + 1 < len(free) and (further := self._with_unmapped(free[at + 1])) < size:
                at, size = at + 1, further
        return free[at] & ADDRESS_MASK

    def grown_to(self, need: int) -> int | None:
        """Map what lacks for a free block and return its address; None where the GPU is full.

        What was mapped before the GPU was full stays.
        """
        address = self._lowest_fit(need)
        while (size := self.by_start.get(address, 0)) < need:
            if not self._map(address + size, need - size):
                return None
        return address

    def take(self, address: int, need: int) -> None:
        """Allocate the front of a free block."""
        left = self._remove(address) - need
        if left:
            self._insert(address + need, left)

    def add(self, address: int, size: int) -> None:
        """Free a stretch: it joins its free neighbours."""
        before = self.by_end.get(address)
        if before is not None:
            address -= before
            size += self._remove(address)
        if address + size in self.by_start:
            size += self._remove(address + size)
        self._insert(address, size)

    def unmap_free_pages(self) -> None:
        """Give the pages that are wholly free back to the driver."""
        for address, size in list(self.by_start.items()):
            begin = -(-address // self.page) * self.page
            end = (address + size) // self.page * self.page
            if begin < end:
                self._remove(address)
                if address < begin:
                    self._insert(address, begin - address)
                if end < address + size:
                    self._insert(end, address + size - end)
                self.owner.resize(begin, begin - end)
                self._unmap(begin, end)

    def mapped(self) -> Iterator[tuple[int, int]]:
        """Yield address and size of what lies between unmapped pages, stretch by stretch."""
        for start, size in self.stretches.items():
            at, end = start, start + size
            for address in [*sorted(a for a in self.unmapped if start <= a < end), end]:
                if address > at:
                    yield at, address - at
                at = address + self.unmapped.get(address, 0)

    def _with_unmapped(self, block: int) -> int:
        """Return a free block's size with the unmapped pages that follow it."""
        size = block >> SIZE_SHIFT
        return size + self.unmapped.get((block & ADDRESS_MASK) + size, 0)

    def _lowest_fit(self, need: int) -> int:
        """Return where free blocks and unmapped pages in a row are enough for `need`."""
        for unmapped in sorted(self.unmapped):
            address = end = unmapped - self.by_end.get(unmapped, 0)
            while end - address < need:
                size = self.by_start.get(end) or self.unmapped.get(end)
                if size is None:
                    break
                end += size
            if end - address >= need:
                return address
        return self._endless() if self.owner.is_beyond_gpu(need) else self._new_stretch()

    def _new_stretch(self) -> int:
        """Reserve addresses, with a gap: blocks of two stretches are never neighbours."""
        last = max(self.stretches, default=None)
        address = self.base if last is None else last + self.stretches[last] + self.page
        self.stretches[address] = self.unmapped[address] = self.stretch
        return address

    def _endless(self) -> int:
        """Let the last stretch have no end; return where its last free block begins."""
        last = max(self.stretches, default=self.base)
        if last + self.stretches.get(last, 0) + _ENDLESS > self.base + POOL_ADDRESSES:
            most = format_bytes(_ENDLESS << UNIT_BITS)
            raise TooLargeError(f"this job takes more than {most} in one pool")
        end = last + self.stretches.get(last, 0)
        tail = next((at for at, size in self.unmapped.items() if at + size == end), end)
        self.stretches[last] = end - last + _ENDLESS
        self.unmapped[tail] = end - tail + _ENDLESS
        return tail - self.by_end.get(tail, 0)

    def _map(self, address: int, size: int) -> bool:
        """Map unmapped pages for so much, or all there are in a row, and free them."""
        there = self.unmapped[address]
        size = min(there, -(-size // self.page) * self.page)
        if not self.owner.resize(address, size):
            return False
        del self.unmapped[address]
        if size < there:
            self.unmapped[address + size] = there - size
        self.add(address, size)
        return True

    def _unmap(self, begin: int, end: int) -> None:
        """Note pages as unmapped: they join those before and after."""
        size = end - begin + self.unmapped.pop(end, 0)
        before = next((at for at, n in self.unmapped.items() if at + n == begin), None)
        if before is None:
            self.unmapped[begin] = size
        else:
            self.unmapped[before] += size

    def _insert(self, address: int, size: int) -> None:
        self.by_start[address] = self.by_end[address + size] = size
        insort(self.free, (size << SIZE_SHIFT) + address)

    def _remove(self, address: int) -> int:
        size = self.by_start.pop(address)
        del self.by_end[address + size]
        del self.free[bisect_left(self.free, (size << SIZE_SHIFT) + address)]
        return size
