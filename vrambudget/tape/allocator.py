"""Replay of PyTorch's CUDA caching allocator: what is asked for becomes allocated and reserved.

A replay is fed events in order: `i` says that storage `i` is allocated, `~i` that it is freed;
`sizes[i]` is what it asks for, in bytes. It keeps what `torch.cuda.memory_stats()` keeps: requested
bytes (as asked), allocated bytes (blocks as handed out), reserved bytes (segments of the driver).

The rules, with default settings and one device (torch 2.11); `vrambudget.tape.streams` has those
of several streams, and of storages that are filled again:

    round       up to a multiple of 512 bytes; zero bytes take nothing
    pool        small: up to 1 MiB after rounding; large: all else
    find        the smallest free block of the pool that is enough, of equals the lowest address
    segment     where none is: 2 MiB (small pool), 20 MiB (below 10 MiB), else a multiple of 2 MiB
    split       small pool: if 512 bytes or more are left over; large pool: if more than 1 MiB is;
                else the block is handed out, and counted, whole
    free        the block joins its free neighbours in the segment at once; segments are kept
    GPU full    every segment that is wholly free is given back to the driver, and the driver is
                asked once more; then out of memory

Source: c10/core/AllocatorConfig.h (constants) and c10/cuda/CUDACachingAllocator.cpp, class
DeviceCachingAllocator: malloc, round_size, get_pool, get_free_block, get_allocation_size,
alloc_block, should_split, alloc_found_block, free_block, try_merge_blocks, release_cached_blocks.
tests/test_allocator.py holds it against what PyTorch itself did.

Addresses: the driver is taken to hand out segments at rising addresses, as a virtual GPU's does.
That decides between free blocks of one size; `vrambudget.tape.linux_addresses` has a real one's.

Not modelled: PYTORCH_CUDA_ALLOC_CONF (max_split_size_mb, roundup_power2_divisions,
garbage_collection_threshold; expandable_segments are `vrambudget.tape.expandable`'s), memory
fractions, CUDA graphs' private pools.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Any

from vrambudget.errors import TooLargeError
from vrambudget.tape.counters import Counters
from vrambudget.tape.full_gpu import OutOfDeviceMemoryError
from vrambudget.tape.segment_sizes import SMALL, UNIT_BITS, segment_size
from vrambudget.units import format_bytes

# A block is one integer, (size << 44) + address: sorted, blocks lie as best fit looks for them.
SIZE_SHIFT = 44
ADDRESS_MASK = (1 << SIZE_SHIFT) - 1


class CachingAllocator(Counters):
    """One device's allocator; `capacity_bytes` is what the GPU has for segments, None is endless.

    Where `peak_reserved_bytes` on an endless GPU is within a capacity, the replay on that GPU is
    the same, to the byte: only a smaller GPU needs a replay of its own.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        super().__init__()
        self._capacity = None if capacity_bytes is None else capacity_bytes >> UNIT_BITS
        self._keeps_cache = False  # also where the GPU is full
        self._next_address = 0
        self._segments: dict[int, int] = {}  # size by address
        # Segments that came (+size) and went (-size), by address, in bytes.
        self.segment_changes: list[tuple[int, int]] = []
        self.completed: list[int] = []  # storages whose frees had waited for other streams
        self.placed: list[int] = []  # by storage: the block it got last, 0 before that
        # Free blocks: sorted by pool, and by where they start and end, to find neighbours.
        self.pools = self.new_pools()  # of the stream that is current
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}

    def block_bytes(self, storage: int) -> int:
        """Return what `storage` counts for in allocated bytes from its allocation to its end."""
        return self.placed[storage] >> SIZE_SHIFT << UNIT_BITS

    def address_of(self, storage: int) -> int:
        """Return where the block of `storage` lies; the first segment begins at 0."""
        return (self.placed[storage] & ADDRESS_MASK) << UNIT_BITS

    def segments(self) -> dict[int, int]:
        """Return the sizes of the segments that are reserved now, by address, in bytes."""
        return {at << UNIT_BITS: size << UNIT_BITS for at, size in self._segments.items()}

    def state(self) -> tuple[object, ...]:
        """Return what decides, with where storages lie that die later, all that comes next."""
        return (
            *self._free_blocks(),
            self._next_address,
            self._reserved,
            self._allocated,
            self._requested_bytes,
        )

    def stream_of(self, storage: int) -> int:
        """Return the stream of the block that `storage` got last."""
        del storage
        return 0

    def stream_at(self, address: int) -> int:
        """Return the stream of the segment that begins at `address`."""
        del address
        return 0

    def is_waiting(self, storage: int) -> bool:
        """Whether this storage's block is freed, and waits for other streams."""
        del storage
        return False

    def blocks(self, storages: Iterable[int]) -> list[object]:
        """Return the blocks that these storages got."""
        return [self.placed[storage] for storage in storages]

    def _free_blocks(self) -> tuple[object, ...]:
        return tuple(map(tuple, self.pools))

    def take_over(self, first: int, stop: int, shift: int) -> None:
        """Let storages `first + shift` to `stop + shift` lie where `first` to `stop` did."""
        self.placed[first + shift : stop + shift] = self.placed[first:stop]

    def new_pools(self) -> tuple[Any, Any]:
        """Return a stream's pools, the small and the large one, with nothing in them."""
        return list[int](), list[int]()

    def empty_cache(self) -> None:
        """Give every segment that is wholly free back to the driver: `torch.cuda.empty_cache()`."""
        for pool in reversed(self.pools):
            pool[:] = [block for block in pool if not self._release(block)]

    def run(
        self,
        events: Sequence[int],
        sizes: Sequence[int],
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        """Replay `events[start:stop]`; a later call goes on where this one stopped.

        A storage is allocated once, and freed once after that. Raises OutOfDeviceMemoryError.
        """
        self.blocks_for(sizes)
        self.serve(events[start:stop], sizes, start)

    def blocks_for(self, sizes: Sequence[int]) -> None:
        """Make room for the blocks of all storages."""
        self.placed.extend([0] * (len(sizes) - len(self.placed)))

    def serve(  # noqa: C901, PLR0912, PLR0915 - one loop: a call an event costs as much as the event
        self, events: Sequence[int], sizes: Sequence[int], position: int
    ) -> None:
        """Replay all these events, the first of which is at a position of the tape."""
        blocks, by_start, by_end = self.placed, self._by_start, self._by_end
        small, large = self.pools
        allocated, peak_allocated, peak_storage = self._allocated, self._peak_allocated, -1
        requested, peak_requested = self._requested_bytes, self._peak_requested_bytes
        shift, mask, find, add = SIZE_SHIFT, ADDRESS_MASK, bisect_left, insort
        limit, refused = SMALL, -1

        for event in events:
            if event >= 0:
                asked = sizes[event]
                need = (asked + 511) >> 9  # UNIT_BITS
                if not need:
                    continue
                pool = small if need <= limit else large
                at = find(pool, need << shift)
                if at < len(pool):
                    block = pool[at]
                    address = block & mask
                    size = block >> shift
                    del by_start[address]
                else:
                    block = self._new_segment(need)
                    if not block:
                        refused = event
                        break
                    address = block & mask
                    size = block >> shift
                    at = len(pool)  # larger than all that are free: none of them was enough
                    pool.append(block)

                left = size - need
                if left > limit or (left and need <= limit):
                    rest = block - (need << shift) + need
                    by_start[address + need] = by_end[address + size] = rest
                    if at and pool[at - 1] > rest:
                        del pool[at]
                        add(pool, rest, 0, at)
                    else:
                        pool[at] = rest
                    size = need
                    block = (need << shift) + address
                else:
                    del pool[at]
                    by_end.pop(address + size, None)  # a new segment is not there

                blocks[event] = block
                allocated += size
                if allocated > peak_allocated:
                    peak_allocated = allocated
                    peak_storage = event
                requested += asked
                if requested > peak_requested:  # noqa: PLR1730 - max() is a call
                    peak_requested = requested

            else:
                block = blocks[~event]
                if not block:
                    continue
                address = block & mask
                size = block >> shift
                end = address + size
                allocated -= size
                requested -= sizes[~event]
                # A large block is larger than every block that a small request can get.
                pool = small if size <= limit else large
                if address in by_end:
                    near = by_end.pop(address)
                    del pool[find(pool, near)]
                    block += near - address  # the sizes add up, the address is the neighbour's
                    address = near & mask
                if end in by_start:
                    near = by_start.pop(end)
                    del pool[find(pool, near)]
                    block += near - end
                    end += near >> shift
                by_start[address] = by_end[end] = block
                add(pool, block)

        self._allocated, self._requested_bytes = allocated, requested
        self._peak_allocated, self._peak_requested_bytes = peak_allocated, peak_requested
        if peak_storage >= 0:
            self.peak_event = position + events.index(peak_storage)
        if refused >= 0:
            self._raise_out_of_memory(position + events.index(refused), sizes[refused])

    def _new_segment(self, need: int) -> int:
        """Return a block that is a whole new segment, or 0 where the GPU has no room for one."""
        size = segment_size(need)
        if not self._is_within_limit(size):
            if self._keeps_cache:
                return 0
            self.empty_cache()
            self.num_alloc_retries += 1
            if not self._is_within_limit(size):
                return 0
        address = self._address_of(size)
        self._segments[address] = size
        self.segment_changes.append((address << UNIT_BITS, size << UNIT_BITS))
        self._reserved += size
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        return (size << SIZE_SHIFT) + address

    def _address_of(self, size: int) -> int:
        """Return where a new segment lies."""
        address = self._next_address
        if address + size > ADDRESS_MASK:
            most = format_bytes(ADDRESS_MASK << UNIT_BITS)
            raise TooLargeError(f"this job takes more than {most}")
        self._next_address += size + 1  # a gap: blocks of two segments are never neighbours
        return address

    def _is_within_limit(self, size: int) -> bool:
        return self._capacity is None or self._reserved + size <= self._capacity

    def _release(self, block: int) -> bool:
        """Give a free block back to the driver if it is a whole segment, and say whether it was."""
        address, size = block & ADDRESS_MASK, block >> SIZE_SHIFT
        if self._segments.get(address) != size:
            return False
        del self._segments[address], self._by_start[address], self._by_end[address + size]
        self.segment_changes.append((address << UNIT_BITS, -(size << UNIT_BITS)))
        self._reserved -= size
        return True

    def _raise_out_of_memory(self, event: int, requested_bytes: int) -> None:
        need = (requested_bytes + (1 << UNIT_BITS) - 1) >> UNIT_BITS
        raise OutOfDeviceMemoryError(
            event=event,
            requested_bytes=requested_bytes,
            segment_bytes=segment_size(need) << UNIT_BITS,
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=self.reserved_bytes,
        )
