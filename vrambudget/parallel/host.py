"""Main memory: how much a rank takes where things are offloaded.

Pinned memory is handed out in powers of two (ATen/core/CachingHostAllocator.h, allocate).
"""

from collections.abc import Iterable

STATES = {"adamw": 2, "adam": 2, "sgd-momentum": 1, "sgd": 0, "none": 0}
"""How often an optimizer has a parameter's size, of those that shards are stepped with."""


def held_bytes(sizes: Iterable[int], *, pinned: bool) -> int:
    """Return what buffers of these bytes take together."""
    return sum(1 << (size - 1).bit_length() if pinned else size for size in sizes if size)
