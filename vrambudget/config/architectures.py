"""What a multiprocessor of each architecture holds, by compute capability.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". An
architecture that is not listed takes the nearest older one's, the oldest one's if it is older.
"""

from typing import NamedTuple

_KIB = 1024


class SmLimits(NamedTuple):
    """Of one multiprocessor; `shared_per_block` is the most that a block may ask for, in bytes."""

    shared_per_block: int
    threads: int  # resident
    blocks: int  # resident


_LIMITS = {
    (7, 0): SmLimits(96 * _KIB, 2048, 32),
    (7, 5): SmLimits(64 * _KIB, 1024, 16),
    (8, 0): SmLimits(163 * _KIB, 2048, 32),
    (8, 6): SmLimits(99 * _KIB, 1536, 16),
    (8, 7): SmLimits(163 * _KIB, 1536, 16),
    (8, 9): SmLimits(99 * _KIB, 1536, 24),
    (9, 0): SmLimits(227 * _KIB, 2048, 32),
    (10, 0): SmLimits(227 * _KIB, 2048, 32),
    (12, 0): SmLimits(99 * _KIB, 1536, 24),
}


def limits_of(compute_capability: tuple[int, int]) -> SmLimits:
    """Return the limits of an architecture."""
    older = [capability for capability in _LIMITS if capability <= compute_capability]
    return _LIMITS[max(older, default=min(_LIMITS))]
