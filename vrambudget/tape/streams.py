"""The allocator of a tape with several streams, and with storages whose bytes come and go.

It is fed and read as `CachingAllocator`, and its rules are those, but for these (torch 2.11):

    pools         each stream has its own: a block stays with the stream that asked for its segment,
                  wherever it was freed, and no other stream ever gets it
    record_stream notes that another stream uses a block. When that block is freed, it leaves
                  allocated at once, but it becomes free for others, and leaves requested, only once
                  the work of those streams is over
    allocate      looks first which of those blocks have become free
    GPU full, and emptying the cache: all streams' pools; what waits is waited for first
    release, fill a free and an allocation, on the stream that is current then

Source: c10/cuda/CUDACachingAllocator.cpp: BlockComparatorSize, get_free_block, recordStream, free,
insert_events, process_events, malloc, synchronize_and_free_events, release_cached_blocks;
aten/src/ATen/native/cuda/Resize.cpp, resize_bytes_cuda.

Events are assumed to be over when they are asked for: on a real GPU work may still run, the block
waits longer, and reserved may become more.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.expandable import POOL_ADDRESSES, ExpandableAllocator
from vrambudget.tape.packing import ON_DEFAULT, Event, EventKind, decode
from vrambudget.tape.segment_sizes import UNIT_BITS


class StreamAllocator(CachingAllocator):
    """One device's allocator, whatever is on the tape."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._stream = 0
        self._by_stream: dict[int, tuple[Any, Any]] = {0: self.pools}
        self._stream_of: dict[int, int] = {}  # by storage, of those elsewhere than on 0
        self._uses: dict[int, set[int]] = {}  # by storage: other streams that use its block
        self._waiting: list[int] = []  # storages whose blocks wait for other streams
        self._sizes: Sequence[int] = ()
        self._segment_streams: dict[int, int] = {}  # by address

    def run(
        self,
        events: Sequence[int],
        sizes: Sequence[int],
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        """Replay `events[start:stop]`; a later call goes on where this one stopped.

        Events that need no care are served together, as long as they are of one stream. Raises
        OutOfDeviceMemoryError.
        """
        self.blocks_for(sizes)
        self._sizes = sizes
        stream_of, uses = self._stream_of, self._uses
        part, position = list[int](), start - 1
        for position, number in enumerate(events[start:stop], start):
            if -ON_DEFAULT <= number < ON_DEFAULT and not self._waiting:
                stream = 0 if number >= 0 else stream_of.get(~number, 0)
                if stream == self._stream and ~number not in uses:
                    part.append(number)
                    continue
            event = decode(number)
            storage = event.storage
            stream = event.stream if event.change > 0 else stream_of.get(storage, 0)
            if part and (stream != self._stream or self._needs_care(event)):
                self.serve(part, sizes, position - len(part))
                part = []
            self._use(stream)
            if event.change > 0:
                self._complete()
                stream_of[storage] = stream
                part.append(storage)
            elif event.change < 0 and storage not in uses:
                part.append(~storage)
            elif event.change < 0:
                self._defer(storage)
            elif event.kind is EventKind.RECORD_STREAM and event.stream != stream:
                uses.setdefault(storage, set()).add(event.stream)
        self.serve(part, sizes, position + 1 - len(part))

    def serve(self, events: Sequence[int], sizes: Sequence[int], position: int) -> None:
        """Replay events of the current stream; remember whose segments they made."""
        known = len(self.segment_changes)
        super().serve(events, sizes, position)
        for address, _ in self.segment_changes[known:]:
            self._segment_streams.setdefault(address, self._stream)

    def empty_cache(self) -> None:
        """Give all that is free back to the driver, of every stream's pools."""
        self._complete()
        current = self._stream
        for stream in self._by_stream:
            self._use(stream)
            super().empty_cache()
        self._use(current)

    def stream_of(self, storage: int) -> int:
        """Return the stream of the block that `storage` got last."""
        return self._stream_of.get(storage, 0)

    def stream_at(self, address: int) -> int:
        """Return the stream of the segment that begins at `address`."""
        return self._segment_streams.get(address, 0)

    def is_waiting(self, storage: int) -> bool:
        """Whether this storage's block is freed, and waits for other streams."""
        return storage in self._waiting

    def blocks(self, storages: Iterable[int]) -> list[object]:
        """Return the blocks that these storages got, and who uses them besides their stream."""
        storages = list(storages)
        uses = (sorted(self._uses.get(storage, ())) for storage in storages)
        return list(zip(super().blocks(storages), uses, strict=True))

    def take_over(self, first: int, stop: int, shift: int) -> None:
        """Let storages `first + shift` to `stop + shift` lie where `first` to `stop` did."""
        super().take_over(first, stop, shift)
        for column in (self._stream_of, self._uses):
            shifted = {i + shift: column[i] for i in range(first, stop) if i in column}
            column.update(shifted)  # type: ignore[arg-type]

    def _free_blocks(self) -> tuple[object, ...]:
        current, found = self._stream, list[object]()
        for stream in sorted(self._by_stream):
            self._use(stream)
            found.append((stream, super()._free_blocks()))
        self._use(current)
        return *found, tuple(super().blocks(self._waiting))

    def _needs_care(self, event: Event) -> bool:
        if event.change > 0:
            return bool(self._waiting) or event.kind is EventKind.FILL
        return not event.change or event.storage in self._uses

    def _use(self, stream: int) -> None:
        if stream != self._stream:
            if stream not in self._by_stream:
                self._by_stream[stream] = self.new_pools()
            self._stream, self.pools = stream, self._by_stream[stream]

    def _defer(self, storage: int) -> None:
        """Free a block that other streams use: it is no longer allocated, that is all for now."""
        del self._uses[storage]
        self._waiting.append(storage)
        self._allocated -= self.block_bytes(storage) >> UNIT_BITS

    def _complete(self) -> None:
        """Free what waits for other streams, whose work is assumed to be over."""
        waiting, self._waiting = self._waiting, []
        current = self._stream
        for storage in waiting:
            self._use(self.stream_of(storage))
            self._allocated += self.block_bytes(storage) >> UNIT_BITS
            self.serve([~storage], self._sizes, 0)
        self._use(current)
        self.completed += waiting


class ExpandableStreamAllocator(StreamAllocator, ExpandableAllocator):
    """The same with segments that expand: each stream's are its own."""

    def stream_at(self, address: int) -> int:
        """Return the stream of the segment that begins at `address`."""
        number = (address >> UNIT_BITS) // POOL_ADDRESSES // 2
        return list(self._by_stream)[number]
