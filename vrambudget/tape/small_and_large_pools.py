"""An allocator whose small and large pool can be served one after the other.

A request of one pool never looks at the other. Three things join them: counters; the order of
segments' addresses, which within a pool stays the same; and a full GPU, on which both pools' cache
is returned to the driver. So a step's requests may be served pool by pool (`begin`, then `end`) if
all of them fit on the GPU. If not, OutOfDeviceMemoryError is raised, and `undo` reverts the step.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import add

from vrambudget.tape.allocator import ADDRESS_MASK, SIZE_SHIFT, CachingAllocator
from vrambudget.tape.segment_sizes import SMALL, UNIT_BITS
from vrambudget.tape.step_plans import Whole

_FAR_BELOW = 1 << 60  # no peak is reached from there
_COUNTERS = (
    *("_allocated", "_requested_bytes", "_reserved"),
    *("_peak_reserved", "_peak_allocated", "peak_event"),
)


class SmallAndLargePools(CachingAllocator):
    """One device's allocator."""

    small_segments_made = 0

    @property
    def free_small(self) -> tuple[int, ...]:
        """The free blocks of the small pool."""
        return tuple(self.pools[0])

    def begin(self) -> None:
        """From here to `end` events come pool by pool."""
        self._counters = {name: getattr(self, name) for name in _COUNTERS}
        if self._capacity is not None:
            self._had_pools = list(self.pools[0]), list(self.pools[1])
            self._had = dict(self._by_start), dict(self._by_end), dict(self._segments)
            self._had_addresses = self._next_address, len(self.segment_changes)
        self._allocated -= _FAR_BELOW
        self._peak_allocated = self._allocated
        self._requested_bytes -= _FAR_BELOW
        self._keeps_cache = True

    def end(
        self, large: Sequence[int], sizes: Sequence[int], small: Whole, *, requested: int
    ) -> None:
        """Replay the events of the large pool; those of the `small` one are served.

        Both together are asked for `requested` bytes more.
        """
        self.serve(large, sizes, 0)
        counters = self._counters
        self._allocated += _FAR_BELOW + small.change
        self._requested_bytes = counters["_requested_bytes"] + requested
        peak = counters["_peak_allocated"]
        if self._peak_allocated + _FAR_BELOW + small.most > peak:  # were both at their most at once
            levels = self._levels(large, counters["_allocated"])
            peak = max(peak, *map(add, levels, small.beside))
        self._peak_allocated, self.peak_event = peak, counters["peak_event"]
        self._keeps_cache = False

    def _levels(self, large: Sequence[int], before: int) -> Iterator[int]:
        """Yield the units before, and after each of these events."""
        blocks = self.placed
        changes = [
            blocks[event] >> SIZE_SHIFT if event >= 0 else -(blocks[~event] >> SIZE_SHIFT)
            for event in large
        ]
        return accumulate(changes, initial=before)

    def undo(self) -> None:
        """Return to the state at `begin`; the GPU has a capacity."""
        for name, value in self._counters.items():
            setattr(self, name, value)
        self.pools = self._had_pools
        self._by_start, self._by_end, self._segments = self._had
        self._next_address, changes = self._had_addresses
        del self.segment_changes[changes:]
        self._keeps_cache = False

    def serve_small(
        self, shape: Iterable[int], needs: Sequence[int], there: Sequence[int]
    ) -> list[int]:
        """Serve small requests between `begin` and `end`; return what block each storage got.

        `shape`: i for a request of `needs[i]` units, ~i for its end; from ~`len(needs)` on the ends
        of the blocks that are `there`. The counters stay as they are.
        """
        blocks, self.placed = self.placed, [*[0] * len(needs), *there]
        counters = self._allocated, self._requested_bytes, self._peak_allocated
        sizes = [*[need << UNIT_BITS for need in needs], *[0] * len(there)]
        try:
            self.serve([*shape], sizes, 0)
        finally:
            got, self.placed = self.placed, blocks
            self._allocated, self._requested_bytes, self._peak_allocated = counters
        return got

    def put_small_pool(self, free: Sequence[int]) -> None:
        """Replace the small pool's free blocks by these."""
        by_start, by_end = self._by_start, self._by_end
        for block in self.pools[0]:
            address = block & ADDRESS_MASK
            del by_start[address], by_end[address + (block >> SIZE_SHIFT)]
        self.pools[0][:] = free
        for block in free:
            address = block & ADDRESS_MASK
            by_start[address] = by_end[address + (block >> SIZE_SHIFT)] = block

    def _new_segment(self, need: int) -> int:
        self.small_segments_made += need <= SMALL
        return super()._new_segment(need)
