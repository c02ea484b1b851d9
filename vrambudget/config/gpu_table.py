"""The table of GPUs: what the driver reports for each, and the source of each number.

- capacity: `torch.cuda.get_device_properties().total_memory`, which is `cudaMemGetInfo`'s total. It
  is less than the memory sold and than `nvidia-smi` shows, less on Linux than on Windows, and
  differs by some MiB between drivers: of several published numbers, the smallest seen on Linux.
  A number printed in MiB or GiB is known only to its last digit, and is rounded down.
- context: memory that the driver takes outside PyTorch's allocator once a process uses the GPU. It
  depends on driver, loaded kernels and torch build: a measured constant, not a law.
- compute capability, multiprocessors, L2: from the same source, or NVIDIA's specification.

If a spelling fits two GPUs, the one sold with less memory is taken, then the earlier row.
Not in the table: GPUs for which no published capacity was found. `--gpu 11.69GiB` covers them.
"""

from dataclasses import dataclass

_MIB = 2**20
_GIB = 2**30

_RECORDS = "the card that this project's reference records were made on"
_TORCH = "public log of torch.cuda.get_device_properties: "
_QUERY = "public log of CUDA's deviceQuery, to the byte"
_OOM = "public out-of-memory message: "

_A100_CONTEXT = "AgileRL: 501 MiB on an A100, torch 2.11 cu130, NVML around a first allocation"
_L4_CONTEXT = "AgileRL: 226 MiB on an L4, torch 2.11 cu130, NVML around a first allocation"
_ADA_CONTEXT = "public measurement: 426 MiB on an RTX 6000 Ada, torch 2.10 cu130, mem_get_info"
_A2000_CONTEXT = "public measurement: 0.13 GiB on an RTX A2000, driver 575"
_5090_CONTEXT = "public measurements: 0.59 to 0.71 GiB on an RTX 5090, driver 595; the larger"


def _as(card: str) -> str:
    return f"not measured: taken from {card}"


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU. `model`: the words that a spelling must have; `also`: words that it may have."""

    key: str
    name: str  # as the driver and torch.cuda.get_device_name() report it
    model: str
    also: str
    sold_gb: int
    capacity_bytes: int
    context_bytes: int
    compute_capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    source: str
    context_source: str


# fmt: off
ROWS: tuple[GpuRow, ...] = (
    # data centre
    GpuRow("p100-16gb", "Tesla P100-PCIE-16GB",
           "p100", "sxm 2", 16,
           16_269 * _MIB, 310 * _MIB, (6, 0), 56, 4 * _MIB,
           _TORCH + "16269MiB", _as("V100")),
    GpuRow("v100-16gb", "Tesla V100-SXM2-16GB",
           "v100", "pcie", 16,
           16_945_512_448, 310 * _MIB, (7, 0), 80, 6 * _MIB,
           _RECORDS, _RECORDS),
    GpuRow("v100-32gb", "Tesla V100-SXM2-32GB",
           "v100", "pcie", 32,
           34_072_559_616, 310 * _MIB, (7, 0), 80, 6 * _MIB,
           _QUERY, _as("V100")),
    GpuRow("t4", "Tesla T4",
           "t4", "", 16,
           15_835_660_288, 105 * _MIB, (7, 5), 40, 4 * _MIB,
           _RECORDS, _RECORDS),
    GpuRow("a10", "NVIDIA A10",
           "a10", "", 24,
           23_609_475_072, 225 * _MIB, (8, 6), 72, 6 * _MIB,
           _QUERY, _as("RTX 3060")),
    GpuRow("a10g", "NVIDIA A10G",
           "a10g", "", 24,
           22_587 * _MIB, 225 * _MIB, (8, 6), 80, 6 * _MIB,
           _TORCH + "22587MB", _as("RTX 3060")),
    GpuRow("a30", "NVIDIA A30",
           "a30", "", 24,
           int(23.53 * _GIB), 501 * _MIB, (8, 0), 56, 24 * _MIB,
           _OOM + "23.53 GiB", _as("A100")),
    GpuRow("a40", "NVIDIA A40",
           "a40", "", 48,
           45_416 * _MIB, 225 * _MIB, (8, 6), 84, 6 * _MIB,
           _TORCH + "45416MB", _as("RTX 3060")),
    GpuRow("l4", "NVIDIA L4",
           "l4", "", 24,
           23_612_293_120, 226 * _MIB, (8, 9), 58, 48 * _MIB,
           _QUERY, _L4_CONTEXT),
    GpuRow("l40", "NVIDIA L40",
           "l40", "", 48,
           int(44.39 * _GIB), 426 * _MIB, (8, 9), 142, 96 * _MIB,
           _TORCH + "44.39GB", _as("RTX 6000 Ada")),
    GpuRow("l40s", "NVIDIA L40S",
           "l40s", "", 48,
           45_589 * _MIB, 426 * _MIB, (8, 9), 142, 96 * _MIB,
           _TORCH + "45589MB", _as("RTX 6000 Ada")),
    GpuRow("a100-40gb", "NVIDIA A100-SXM4-40GB",
           "a100", "", 40,
           42_297_786_368, 501 * _MIB, (8, 0), 108, 40 * _MIB,
           _RECORDS, _A100_CONTEXT),
    GpuRow("a100-80gb", "NVIDIA A100-SXM4-80GB",
           "a100", "", 80,
           85_097_971_712, 501 * _MIB, (8, 0), 108, 40 * _MIB,
           _RECORDS, _A100_CONTEXT),
    GpuRow("a100-pcie-40gb", "NVIDIA A100-PCIE-40GB",
           "a100 pcie", "", 40,
           40_377 * _MIB, 501 * _MIB, (8, 0), 108, 40 * _MIB,
           _TORCH + "40377MiB", _A100_CONTEXT),
    GpuRow("a100-pcie-80gb", "NVIDIA A100 80GB PCIe",
           "a100 pcie", "", 80,
           81_049 * _MIB, 501 * _MIB, (8, 0), 108, 40 * _MIB,
           _TORCH + "81049MB", _A100_CONTEXT),
    GpuRow("h100-80gb", "NVIDIA H100 80GB HBM3",
           "h100", "sxm 5", 80,
           85_029_158_912, 520 * _MIB, (9, 0), 132, 50 * _MIB,
           _RECORDS, _RECORDS),
    GpuRow("h100-pcie", "NVIDIA H100 PCIe",
           "h100 pcie", "", 80,
           81_008 * _MIB, 520 * _MIB, (9, 0), 114, 50 * _MIB,
           _TORCH + "81008MB", _as("H100")),
    GpuRow("h100-nvl", "NVIDIA H100 NVL",
           "h100 nvl", "", 94,
           99_456_909_312, 520 * _MIB, (9, 0), 132, 50 * _MIB,
           _TORCH + "99456909312 bytes", _as("H100")),
    GpuRow("h200", "NVIDIA H200",
           "h200", "sxm", 141,
           143_156 * _MIB, 520 * _MIB, (9, 0), 132, 60 * _MIB,
           _TORCH + "143156MB, L2_cache_size=60MB", _as("H100")),
    GpuRow("b200", "NVIDIA B200",
           "b200", "sxm", 180,
           182_631 * _MIB, 520 * _MIB, (10, 0), 148, 126 * _MIB,
           _TORCH + "182631MB, L2_cache_size=126MB", _as("H100")),
    # workstation
    GpuRow("rtx-a2000-12gb", "NVIDIA RTX A2000 12GB",
           "a2000", "rtx", 12,
           12_017 * _MIB, 133 * _MIB, (8, 6), 26, 3 * _MIB,
           _TORCH + "12017MiB", _A2000_CONTEXT),
    GpuRow("rtx-a4000", "NVIDIA RTX A4000",
           "a4000", "rtx", 16,
           int(15.61 * _GIB), 225 * _MIB, (8, 6), 48, 4 * _MIB,
           _OOM + "15.61 GiB", _as("RTX 3060")),
    GpuRow("rtx-a5000", "NVIDIA RTX A5000",
           "a5000", "rtx", 24,
           24_138 * _MIB, 225 * _MIB, (8, 6), 64, 6 * _MIB,
           _TORCH + "24138MB, L2_cache_size=6MB", _as("RTX 3060")),
    GpuRow("rtx-a6000", "NVIDIA RTX A6000",
           "a6000", "rtx", 48,
           48_676 * _MIB, 225 * _MIB, (8, 6), 84, 6 * _MIB,
           _TORCH + "48676MB", _as("RTX 3060")),
    GpuRow("rtx-6000-ada", "NVIDIA RTX 6000 Ada Generation",
           "6000 ada", "rtx", 48,
           48_622 * _MIB, 426 * _MIB, (8, 9), 142, 96 * _MIB,
           _TORCH + "48622MB", _ADA_CONTEXT),
    GpuRow("rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition",
           "pro 6000", "workstation", 96,
           97_250 * _MIB, 727 * _MIB, (12, 0), 188, 128 * _MIB,
           _TORCH + "97250MB, L2_cache_size=128MB", _as("RTX 5090")),
    GpuRow("quadro-rtx-8000", "Quadro RTX 8000",
           "rtx 8000", "", 48,
           48_380 * _MIB, 105 * _MIB, (7, 5), 72, 6 * _MIB,
           _TORCH + "48380MiB", _as("T4")),
    GpuRow("titan-rtx", "NVIDIA TITAN RTX",
           "titan rtx", "", 24,
           24_212 * _MIB, 105 * _MIB, (7, 5), 72, 6 * _MIB,
           _TORCH + "24212MiB", _as("T4")),
    # GeForce
    GpuRow("gtx-1080-ti", "NVIDIA GeForce GTX 1080 Ti",
           "1080 ti", "gtx", 11,
           11_172 * _MIB, 310 * _MIB, (6, 1), 28, 11 * _MIB // 4,
           _TORCH + "11172MiB", _as("V100")),
    GpuRow("rtx-2060", "NVIDIA GeForce RTX 2060",
           "2060", "", 6,
           5_918 * _MIB, 105 * _MIB, (7, 5), 30, 3 * _MIB,
           _TORCH + "5918MiB", _as("T4")),
    GpuRow("rtx-2060-super", "NVIDIA GeForce RTX 2060 SUPER",
           "2060 super", "", 8,
           7_974 * _MIB, 105 * _MIB, (7, 5), 34, 4 * _MIB,
           _TORCH + "7974MB", _as("T4")),
    GpuRow("rtx-2070", "GeForce RTX 2070",
           "2070", "", 8,
           8_370_061_312, 105 * _MIB, (7, 5), 36, 4 * _MIB,
           _QUERY, _as("T4")),
    GpuRow("rtx-2080", "GeForce RTX 2080",
           "2080", "", 8,
           8_335_327_232, 105 * _MIB, (7, 5), 46, 4 * _MIB,
           _QUERY, _as("T4")),
    GpuRow("rtx-2080-ti", "NVIDIA GeForce RTX 2080 Ti",
           "2080 ti", "", 11,
           11_012 * _MIB, 105 * _MIB, (7, 5), 68, 11 * _MIB // 2,
           _TORCH + "11012MiB", _as("T4")),
    GpuRow("rtx-3060", "NVIDIA GeForce RTX 3060",
           "3060", "", 12,
           12_552_044_544, 225 * _MIB, (8, 6), 28, 9 * _MIB // 4,
           _RECORDS, _RECORDS),
    GpuRow("rtx-3060-ti", "NVIDIA GeForce RTX 3060 Ti",
           "3060 ti", "", 8,
           7_833 * _MIB, 225 * _MIB, (8, 6), 38, 4 * _MIB,
           _TORCH + "7833MiB", _as("RTX 3060")),
    GpuRow("rtx-3070", "NVIDIA GeForce RTX 3070",
           "3070", "", 8,
           7_753 * _MIB, 225 * _MIB, (8, 6), 46, 4 * _MIB,
           _TORCH + "7753MiB", _as("RTX 3060")),
    GpuRow("rtx-3080-10gb", "NVIDIA GeForce RTX 3080",
           "3080", "", 10,
           10_002 * _MIB, 225 * _MIB, (8, 6), 68, 5 * _MIB,
           _TORCH + "10002MiB", _as("RTX 3060")),
    GpuRow("rtx-3080-12gb", "NVIDIA GeForce RTX 3080",
           "3080", "", 12,
           12_117 * _MIB, 225 * _MIB, (8, 6), 70, 6 * _MIB,
           _TORCH + "12117MiB", _as("RTX 3060")),
    GpuRow("rtx-3080-ti", "NVIDIA GeForce RTX 3080 Ti",
           "3080 ti", "", 12,
           12_489_195_520, 225 * _MIB, (8, 6), 80, 6 * _MIB,
           _TORCH + "11910.625MB", _as("RTX 3060")),
    GpuRow("rtx-3090", "NVIDIA GeForce RTX 3090",
           "3090", "", 24,
           24_124 * _MIB, 225 * _MIB, (8, 6), 82, 6 * _MIB,
           _TORCH + "24124MiB", _as("RTX 3060")),
    GpuRow("rtx-3090-ti", "NVIDIA GeForce RTX 3090 Ti",
           "3090 ti", "", 24,
           24_110 * _MIB, 225 * _MIB, (8, 6), 84, 6 * _MIB,
           _TORCH + "24110MiB", _as("RTX 3060")),
    GpuRow("rtx-4060", "NVIDIA GeForce RTX 4060",
           "4060", "", 8,
           7_807 * _MIB, 226 * _MIB, (8, 9), 24, 24 * _MIB,
           _TORCH + "7807MiB", _as("L4")),
    GpuRow("rtx-4060-ti-8gb", "NVIDIA GeForce RTX 4060 Ti",
           "4060 ti", "", 8,
           7_806 * _MIB, 226 * _MIB, (8, 9), 34, 32 * _MIB,
           _TORCH + "7806MiB", _as("L4")),
    GpuRow("rtx-4060-ti-16gb", "NVIDIA GeForce RTX 4060 Ti",
           "4060 ti", "", 16,
           16_722_821_120, 226 * _MIB, (8, 9), 34, 32 * _MIB,
           _QUERY, _as("L4")),
    GpuRow("rtx-4070", "NVIDIA GeForce RTX 4070",
           "4070", "", 12,
           11_994 * _MIB, 226 * _MIB, (8, 9), 46, 36 * _MIB,
           _TORCH + "11994MiB", _as("L4")),
    GpuRow("rtx-4070-ti", "NVIDIA GeForce RTX 4070 Ti",
           "4070 ti", "", 12,
           12_007 * _MIB, 226 * _MIB, (8, 9), 60, 48 * _MIB,
           _TORCH + "12007MiB", _as("L4")),
    GpuRow("rtx-4070-ti-super", "NVIDIA GeForce RTX 4070 Ti SUPER",
           "4070 ti super", "", 16,
           16_069 * _MIB, 226 * _MIB, (8, 9), 66, 48 * _MIB,
           _TORCH + "16069MiB", _as("L4")),
    GpuRow("rtx-4080", "NVIDIA GeForce RTX 4080",
           "4080", "", 16,
           16_049 * _MIB, 226 * _MIB, (8, 9), 76, 64 * _MIB,
           _TORCH + "16049MB", _as("L4")),
    GpuRow("rtx-4080-super", "NVIDIA GeForce RTX 4080 SUPER",
           "4080 super", "", 16,
           15_944 * _MIB, 226 * _MIB, (8, 9), 80, 64 * _MIB,
           _TORCH + "15944MiB", _as("L4")),
    GpuRow("rtx-4090", "NVIDIA GeForce RTX 4090",
           "4090", "", 24,
           25_393_692_672, 450 * _MIB, (8, 9), 128, 72 * _MIB,
           _RECORDS, _RECORDS),
    GpuRow("rtx-5060-ti-16gb", "NVIDIA GeForce RTX 5060 Ti",
           "5060 ti", "", 16,
           15_848 * _MIB, 727 * _MIB, (12, 0), 36, 32 * _MIB,
           _TORCH + "15848MiB", _as("RTX 5090")),
    GpuRow("rtx-5070", "NVIDIA GeForce RTX 5070",
           "5070", "", 12,
           11_755 * _MIB, 727 * _MIB, (12, 0), 48, 48 * _MIB,
           "public log of hashcat's device list: 11755 MB", _as("RTX 5090")),
    GpuRow("rtx-5070-ti", "NVIDIA GeForce RTX 5070 Ti",
           "5070 ti", "", 16,
           15_833 * _MIB, 727 * _MIB, (12, 0), 70, 48 * _MIB,
           _TORCH + "15833 MiB", _as("RTX 5090")),
    GpuRow("rtx-5080", "NVIDIA GeForce RTX 5080",
           "5080", "", 16,
           15_840 * _MIB, 727 * _MIB, (12, 0), 84, 64 * _MIB,
           _TORCH + "15840MiB", _as("RTX 5090")),
    GpuRow("rtx-5090", "NVIDIA GeForce RTX 5090",
           "5090", "", 32,
           33_677_180_928, 727 * _MIB, (12, 0), 170, 96 * _MIB,
           _QUERY, _5090_CONTEXT),
    # laptops
    GpuRow("rtx-3080-laptop-16gb", "NVIDIA GeForce RTX 3080 Laptop GPU",
           "3080 laptop", "", 16,
           15_993 * _MIB, 225 * _MIB, (8, 6), 48, 4 * _MIB,
           _TORCH + "15993MiB", _as("RTX 3060")),
    GpuRow("rtx-4060-laptop", "NVIDIA GeForce RTX 4060 Laptop GPU",
           "4060 laptop", "", 8,
           7_806 * _MIB, 226 * _MIB, (8, 9), 24, 32 * _MIB,
           _TORCH + "7806MiB", _as("L4")),
    GpuRow("rtx-4070-laptop", "NVIDIA GeForce RTX 4070 Laptop GPU",
           "4070 laptop", "", 8,
           7_806 * _MIB, 226 * _MIB, (8, 9), 36, 32 * _MIB,
           _TORCH + "7806MiB", _as("L4")),
)
# fmt: on
