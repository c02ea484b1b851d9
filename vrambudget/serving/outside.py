"""What a server takes of a GPU beside PyTorch's allocator: measured, and no code says it.

Kernels that libraries load with the first product, and NCCL's buffers. A rehearsal takes the
`usual`; an estimate shows the range.

Sources: vLLM 0.19.0 (PyTorch 2.10) on H100s, 32 starts with logs of llm-d's planner
(tests/records/serving): 0.24 to 0.27 GiB on one GPU (Granite 3.1 alone 0.46), 2.06 to 2.21 GiB with
tensor parallelism, of which 1.02 are the first communicator's, read when a worker begins.
vLLM 0.11.0 (PyTorch 2.8) on an H100: 0.13 GiB.
"""

from collections.abc import Mapping

from vrambudget.config.gpus import Gpu

_MIB = 2**20
_GIB = 2**30
KERNELS_BYTES = 256 * _MIB
_OLD_KERNELS_BYTES = 133 * _MIB  # PyTorch up to 2.9
_LAST_OLD = (2, 9)
NVLINK_NCCL = (round(1.02 * _GIB), round(1.81 * _GIB))  # of the first communicator, and the second
# 94 MiB in all on four 24 GB GPUs without a link: the first alone.
PCIE_NCCL = (94 * _MIB, 0)
GRAPH_NODE_BYTES = 17_000  # of the driver, for each captured kernel: 14 to 18 KB
_LINKED = ("sxm", "hbm3", "b200", "gb200", "gh200", "h200", "h800", "h20")


def is_linked(gpu: Gpu) -> bool:
    """Tell whether several of these GPUs are sold linked over NVLink, as in NVIDIA's HGX."""
    name = gpu.name.lower()
    return any(word in name for word in _LINKED) and "nvl" not in name.split()


def environment(gpu: Gpu, torch: str, devices: int) -> Mapping[str, str]:
    """Return the variables that say it to the virtual GPU (rehearse/native/outside.c)."""
    version = tuple(int(part) for part in torch.split("+", maxsplit=1)[0].split(".")[:2])
    kernels = _OLD_KERNELS_BYTES if version <= _LAST_OLD else KERNELS_BYTES
    found = {
        "VRAMBUDGET_KERNELS": str(kernels),
        "VRAMBUDGET_GRAPH_NODE": str(GRAPH_NODE_BYTES),
    }
    if devices > 1:
        linked = is_linked(gpu)
        first, further = NVLINK_NCCL if linked else PCIE_NCCL
        found["VRAMBUDGET_NCCL"] = f"{first},{further}"
        if linked:
            found["VRAMBUDGET_LINKED"] = "1"
    return found
