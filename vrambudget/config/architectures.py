"""What a multiprocessor of each architecture holds, by compute capability.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". An
architecture that is not listed takes the nearest older one's, the oldest one's if it is older.
"""

from typing import NamedTuple

_KIB = 1024


class Limits(NamedTuple):
    """Of one multiprocessor; `shared_per_block` is the most that a block may ask for, in bytes."""

    shared_per_block: int
    threads: int  # resident
    blocks: int  # resident


_LIMITS = {
    (7, 0): Limits(96 * _KIB, 2048, 32),
    (7, 5): Limits(64 * _KIB, 1024, 16),
    (8, 0): Limits(163 * _KIB, 2048, 32),
    (8, 6): Limits(99 * _KIB, 1536, 16),
    (8, 7): Limits(163 * _KIB, 1536, 16),
    (8, 9): Limits(99 * _KIB, 1536, 24),
    (9, 0): Limits(227 * _KIB, 2048, 32),
    (10, 0): Limits(227 * _KIB, 2048, 32),
    (12, 0): Limits(99 * _KIB, 1536, 24),
}


def limits_of(compute_capability: tuple[int, int]) -> Limits:
    """Return the limits of an architecture."""
    older = [capability for capability in _LIMITS if capability <= compute_capability]
    return _LIMITS[max(older, default=min(_LIMITS))]
