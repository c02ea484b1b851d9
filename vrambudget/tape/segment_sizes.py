"""Sizes of PyTorch's caching allocator, in units of 512 bytes: smaller integers are faster.

Source: c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp (get_allocation_size).
"""

UNIT_BITS = 9  # kMinBlockSize
SMALL = 1_048_576 >> UNIT_BITS  # kSmallSize: the largest request of the small pool
_SMALL_SEGMENT = 2_097_152 >> UNIT_BITS  # kSmallBuffer
LARGE_SEGMENT = 20_971_520 >> UNIT_BITS  # large_segment_size_, before torch 2.10 kLargeBuffer
_MIN_OWN_SEGMENT = 10_485_760 >> UNIT_BITS  # kMinLargeAlloc: from here a segment of its own
_ROUND_SEGMENT = 2_097_152 >> UNIT_BITS  # kRoundLarge


def segment_size(need: int) -> int:
    """Return the size of the segment that a request without a free block gets."""
    if need <= SMALL:
        return _SMALL_SEGMENT
    if need < _MIN_OWN_SEGMENT:
        return LARGE_SEGMENT
    return -(-need // _ROUND_SEGMENT) * _ROUND_SEGMENT


def units(nbytes: int) -> int:
    """Return a request in units of 512 bytes, rounded up."""
    return (nbytes + 511) >> UNIT_BITS
