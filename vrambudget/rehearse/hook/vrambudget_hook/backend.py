"""Which of PyTorch's allocators a process uses: its own can be rehearsed, the driver's cannot.

Source: c10/cuda/CUDAMallocAsyncAllocator.cpp, where requests go to cudaMallocAsync, and the history
that a rehearsal is made of is refused (recordHistory).

Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

from typing import Any

_OWN = "native"


def check_backend(torch: Any) -> None:
    """Raise RuntimeError where the script has chosen another allocator than PyTorch's own."""
    backend = torch.cuda.get_allocator_backend()
    if backend != _OWN:
        raise RuntimeError(
            f"PyTorch's backend {backend} cannot be rehearsed: what it takes is decided by the"
            " driver's own pools, which only a real GPU has. Rehearse without"
            f" backend:{backend}"
        )
