"""A GPU as cuDNN wants it described: the properties of a device, in JSON.

Of what is described, the compute capability decides engines and their workspaces; on Hopper the
clocks move some (asked with 9.19, one property changed at a time, over 144 convolutions on each
of T4, A100, RTX 4090 and H100). So clocks are those of the architecture's first GPU, and
memory and L2, which decide nothing, stand for all GPUs.

Source: CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION (documentation of cuDNN's backend descriptors),
as cuDNN writes it for a real GPU.
"""

import json

from vrambudget.config.architectures import limits_of

_CLOCKS_KHZ = {  # of multiprocessors and memory, as deviceQuery prints them
    (7, 0): (1_530_000, 877_000),  # V100
    (7, 5): (1_590_000, 5_001_000),  # T4
    (8, 0): (1_410_000, 1_593_000),  # A100
    (8, 6): (1_777_000, 7_501_000),  # RTX 3060
    (8, 9): (2_520_000, 10_501_000),  # RTX 4090
    (9, 0): (1_980_000, 2_619_000),  # H100 SXM
    (10, 0): (1_965_000, 3_996_000),  # B200
    (12, 0): (2_407_000, 14_001_000),  # RTX 5090
}
_AMPERE = (8, 0)  # from here on 1 KiB of a block's shared memory is the system's
_DRIVER = 13_000


def described(compute_capability: tuple[int, int], multiprocessors: int) -> str:
    """Return the JSON for a GPU."""
    major, minor = compute_capability
    limits = limits_of(compute_capability)
    older = [capability for capability in _CLOCKS_KHZ if capability <= compute_capability]
    core, memory = _CLOCKS_KHZ[max(older, default=min(_CLOCKS_KHZ))]
    return json.dumps(
        {
            "deviceVer": 100 * major + 10 * minor,
            "driverVer": _DRIVER,
            "cudaDeviceId": 0,
            "totalGlobalMem": 80 * 2**30,
            "maxGridSize": [2147483647, 65535, 65535],
            "maxBlockSize": [1024, 1024, 64],
            "regsPerBlock": 65536,
            "multiProcessorCount": multiprocessors,
            "warpSize": 32,
            "maxSharedMemoryPerBlock": 48 * 1024,
            "maxSharedMemoryPerBlockOptin": limits.shared_per_block,
            "reservedSharedMemoryPerBlock": 1024 if compute_capability >= _AMPERE else 0,
            "maxRegistersPerSM": 65536,
            "maxCtasPerSM": limits.blocks,
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerSM": limits.threads,
            "pciDeviceId": 4,
            "isTccDriver": 0,
            "supportCoopLaunch": 1,
            "smClockRateKHz": core,
            "memClockRateKHz": memory,
            "l2CacheSize": 40 * 2**20,
            "deviceName": "NVIDIA GPU",
        }
    )
