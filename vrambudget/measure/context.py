"""What the driver takes of a GPU beside PyTorch's allocator, step by step, in a fresh process.

    python -m vrambudget.measure.context RESULT.json

    start      a first tensor is there
    kernel     after the first kernel
    product    after the first matrix product: cuBLAS is loaded, and has a handle
    backward   after a product's backward pass, whose thread has a handle of its own
    cudnn      after a convolution forward and backward: cuDNN is loaded, where there is one

Each step is read twice: `mem_get_info`, total - free less what PyTorch has reserved, which other
processes' memory is part of; and `nvml`, what the driver's library says that this process takes,
None where it does not say it (in a container, on Windows).
"""

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

_MOST_PROCESSES = 64
_UNKNOWN = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of nvml.h, since version 2."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    )


def main() -> None:
    """Measure and write the result."""
    result: dict[str, Any] = {}
    torch.empty(1, device="cuda")
    result["start"] = _used()
    a = torch.zeros(256, 256, device="cuda", requires_grad=True)
    result["kernel"] = _used()
    b = a @ a
    result["product"] = _used()
    b.sum().backward()
    result["backward"] = _used()
    if torch.backends.cudnn.is_available():
        conv = torch.nn.Conv2d(3, 16, 3, padding=1, device="cuda")
        conv(torch.randn(1, 3, 64, 64, device="cuda")).sum().backward()
        result["cudnn"] = {**_used(), "version": torch.backends.cudnn.version()}
    Path(sys.argv[1]).write_text(json.dumps(result))


def _used() -> dict[str, int | None]:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    own = torch.cuda.memory_reserved()
    by_driver = _by_nvml()
    return {
        "mem_get_info": total - free - own,
        "nvml": None if by_driver is None else by_driver - own,
    }


def _by_nvml() -> int | None:
    """Return bytes that NVML says this process has on any GPU."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        ask = nvml.nvmlDeviceGetComputeRunningProcesses_v3
    except (OSError, AttributeError):
        return None
    devices = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(devices)):
        return None
    used: list[int] = []
    for index in range(devices.value):  # NVML knows nothing of CUDA_VISIBLE_DEVICES
        device, count = ctypes.c_void_p(), ctypes.c_uint(_MOST_PROCESSES)
        processes = (_Process * _MOST_PROCESSES)()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            continue
        if not ask(device, ctypes.byref(count), processes):
            used += [p.used for p in processes[: count.value] if p.pid == os.getpid()]
    return sum(used) if used and _UNKNOWN not in used else None


if __name__ == "__main__":
    main()
