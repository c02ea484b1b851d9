"""The card that the stand-ins describe: a row of the GPU table, and its architecture's limits.

The limits of a multiprocessor are from the CUDA C++ Programming Guide, "Technical Specifications
per Compute Capability". An architecture that is not listed takes the nearest older one's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vrambudget.config.gpus import Gpu

CUDNN_ATTENDS = (9, 10)
"""Compute capabilities, major, where PyTorch's attention takes cuDNN's kernel by default."""

_KIB = 1024


@dataclass(frozen=True, slots=True)
class _Limits:
    shared_per_block: int  # bytes that a block may ask for
    threads: int  # resident on a multiprocessor
    blocks: int


_LIMITS = {
    (7, 0): _Limits(96 * _KIB, 2048, 32),
    (7, 5): _Limits(64 * _KIB, 1024, 16),
    (8, 0): _Limits(163 * _KIB, 2048, 32),
    (8, 6): _Limits(99 * _KIB, 1536, 16),
    (8, 7): _Limits(163 * _KIB, 1536, 16),
    (8, 9): _Limits(99 * _KIB, 1536, 24),
    (9, 0): _Limits(227 * _KIB, 2048, 32),
    (10, 0): _Limits(227 * _KIB, 2048, 32),
    (12, 0): _Limits(99 * _KIB, 1536, 24),
}


def environment(gpu: Gpu) -> Mapping[str, str]:
    """Return the variables that describe the card to the stand-ins (native/virtual_gpu.h)."""
    major, minor = gpu.compute_capability
    older = [capability for capability in _LIMITS if capability <= gpu.compute_capability]
    limits = _LIMITS[max(older, default=min(_LIMITS))]
    numbers = (
        gpu.capacity_bytes,
        gpu.context_bytes,
        major,
        minor,
        gpu.multiprocessors,
        gpu.l2_bytes,
        limits.shared_per_block,
        limits.threads,
        limits.blocks,
    )
    described = {"VRAMBUDGET_GPU_NAME": gpu.name, "VRAMBUDGET_GPU": " ".join(map(str, numbers))}
    if major in CUDNN_ATTENDS:  # and cuDNN is not virtual
        described["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"
    return described
