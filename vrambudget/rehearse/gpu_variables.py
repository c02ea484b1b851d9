"""The GPU that the stub libraries describe: a row of the GPU table, its architecture's limits."""

from collections.abc import Mapping

from vrambudget.config.architectures import limits_of
from vrambudget.config.gpus import Gpu
from vrambudget.cudnn.gpu import described as described_to_cudnn


def environment(gpu: Gpu) -> Mapping[str, str]:
    """Return the variables that describe the GPU to the stub libraries (native/virtual_gpu.h)."""
    major, minor = gpu.compute_capability
    limits = limits_of(gpu.compute_capability)
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
    return {
        "VRAMBUDGET_GPU_NAME": gpu.name,
        "VRAMBUDGET_GPU": " ".join(map(str, numbers)),
        "VRAMBUDGET_CUDNN_CARD": described_to_cudnn(gpu.compute_capability, gpu.multiprocessors),
    }
