"""Which allocator a tape is replayed through: PyTorch has one with settings; here each has a file.

A process of one stream is served by the plain one, which is the fastest. The others are imported
where a tape needs them: most do not.
"""

from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.events import Tape


def allocator_for(tape: Tape, capacity_bytes: int | None = None) -> CachingAllocator:
    """Return the allocator of a tape's process, on a GPU with `capacity_bytes` for segments."""
    gpu = tape.expandable_on_bytes
    if gpu is None and tape.driver_addresses == "linux":
        return _linux_allocator(tape, capacity_bytes)
    if not tape.is_fast:
        from vrambudget.tape import streams  # noqa: PLC0415

        if gpu is None:
            return streams.StreamAllocator(capacity_bytes)
        return streams.ExpandableStreamAllocator(gpu, capacity_bytes)
    if gpu is None and all(mark.steps is None for mark in tape.marks):
        return CachingAllocator(capacity_bytes)
    if gpu is None:
        from vrambudget.tape.small_and_large_pools import SmallAndLargePools  # noqa: PLC0415

        return SmallAndLargePools(capacity_bytes)
    from vrambudget.tape.expandable import ExpandableAllocator  # noqa: PLC0415

    return ExpandableAllocator(gpu, capacity_bytes)


def _linux_allocator(tape: Tape, capacity_bytes: int | None) -> CachingAllocator:
    from vrambudget.tape.linux_addresses import (  # noqa: PLC0415
        LinuxAllocator,
        LinuxStreamAllocator,
    )

    return (LinuxAllocator if tape.is_fast else LinuxStreamAllocator)(capacity_bytes)
