"""Where a program reads values from the GPU that are not known: the stub library reports each.

Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

import sys
from typing import Any

from .frames import native_callers, own_frames, place

SHAPE_FROM_DATA = ("nonzero", "masked_select", "unique", "repeat_interleave", "bincount", "histc")
"""Parts of names of operations that read their output's shape from the device."""


class Reads:
    """For each line of Python: place, count, the most bytes at once, whether it makes a shape."""

    def __init__(self) -> None:
        self.entries: dict[tuple[Any, Any], list[Any]] = {}

    def __call__(self, count: int) -> None:
        """Note that so many bytes were read."""
        frames = own_frames(sys._getframe())  # noqa: SLF001 - ours is no own frame
        at = place(frames[-1]) if frames else ["(inside backward)", 0, "", ""]
        key = (at[0], at[1])
        if key not in self.entries:
            is_shape = any(map(_makes_shape, native_callers())) and not _is_printed()
            self.entries[key] = [*at, 0, 0, is_shape]
        entry = self.entries[key]
        entry[4] += 1
        entry[5] = max(entry[5], count)


def _makes_shape(name: str) -> bool:
    """Return whether a C++ function reads its output's shape (`is_nonzero` reads a truth value)."""
    return "is_nonzero" not in name and any(part in name for part in SHAPE_FROM_DATA)


def _is_printed() -> bool:
    """Return whether a tensor is printed: torch selects at most 1,000 numbers, and drops them."""
    frame: Any = sys._getframe()  # noqa: SLF001 - as above
    while frame is not None and not frame.f_code.co_filename.endswith("torch/_tensor_str.py"):
        frame = frame.f_back
    return frame is not None
