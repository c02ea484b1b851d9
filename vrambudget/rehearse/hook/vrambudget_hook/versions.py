"""What a rehearsed process runs: PyTorch's kernels, versions, and which of its allocators.

PyTorch's own can be rehearsed, the driver's cannot. Source: c10/cuda/CUDAMallocAsyncAllocator.cpp,
where requests go to cudaMallocAsync, and the history that a rehearsal is made of is refused
(recordHistory).

Runs in the user's Python, 3.9 or later.
"""

# ruff: noqa: SLF001 - PyTorch's flags have no public name

from __future__ import annotations

import sys
from typing import Any

_OWN = "native"


def architectures(torch: Any) -> list[str]:
    """Return the architectures for which PyTorch has kernels, as sm_80."""
    flags = torch._C._cuda_getArchFlags() if hasattr(torch._C, "_cuda_getArchFlags") else None
    return [a for a in (flags or "").split() if a.startswith("sm_") and a[3:].isdigit()]


def versions(torch: Any, cudnn: str | None) -> dict[str, str]:
    """Return the versions of what is loaded; that of cuDNN where it was asked."""
    found = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)}
    if cudnn:
        found["cudnn"] = cudnn
    found["python"] = ".".join(map(str, sys.version_info[:3]))
    for name in ("transformers", "peft", "accelerate"):
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "__version__"):
            found[name] = str(module.__version__)
    return found


def check_backend(torch: Any) -> None:
    """Raise RuntimeError where the script has chosen another allocator than PyTorch's own."""
    backend = torch.cuda.get_allocator_backend()
    if backend != _OWN:
        raise RuntimeError(
            f"PyTorch's backend {backend} cannot be rehearsed: what it takes is decided by the"
            " driver's own pools, which only a real GPU has. Rehearse without"
            f" backend:{backend}"
        )
