"""The table of GPUs: what the driver reports for each, and the source of each number.

- capacity: `torch.cuda.get_device_properties().total_memory`, which is `cudaMemGetInfo`'s total. It
  is less than the memory sold and than `nvidia-smi` shows, less on Linux than on Windows, and
  differs by some MiB between drivers: of several published numbers, the smallest seen on Linux.
  A number printed in MiB or GiB is known only to its last digit, and is rounded down. It was
  published for this GPU, or is borrowed from a sibling; none was measured here.
- context: what the driver takes outside PyTorch's allocator; `config.cuda_context` has the figures.
- compute capability, multiprocessors, L2: from the same source, or NVIDIA's specification.

If a spelling fits two GPUs, the one sold with less memory is taken, then the earlier row.
Not in the table: GPUs that nobody asked for yet. `--gpu 11.69GiB` covers them.
"""

from typing import NamedTuple

from vrambudget.config.cuda_context import (
    A100,
    H100,
    L4,
    RTX_3060,
    RTX_4090,
    RTX_5090,
    RTX_6000_ADA,
    RTX_A2000,
    T4,
    V100,
    CudaContext,
    Kind,
    like,
)

_MIB = 2**20
_GIB = 2**30

_TORCH = "public log of torch.cuda.get_device_properties: "
_QUERY = "public log of CUDA's deviceQuery, to the byte"
_BYTES = "public record of torch's total_memory, to the byte"
_OOM = "public out-of-memory message: "
_OF_A_SIBLING = "of a sibling: "


class GpuRow(NamedTuple):
    """One GPU. `model`: the words that a spelling must have; `also`: words that it may have."""

    key: str
    name: str  # as the driver and torch.cuda.get_device_name() report it
    model: str
    also: str
    sold_gb: int
    capacity_bytes: int
    context: CudaContext
    compute_capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    source: str

    @property
    def capacity_kind(self) -> Kind:
        """Whose figure the capacity is."""
        return "borrowed" if self.source.startswith(_OF_A_SIBLING) else "published"


# fmt: off
ROWS: tuple[GpuRow, ...] = (
    # data centre
    GpuRow("p100-16gb", "Tesla P100-PCIE-16GB",
           "p100", "sxm 2", 16, 16_269 * _MIB, like(V100), (6, 0), 56, 4 * _MIB,
           _TORCH + "16269MiB"),
    GpuRow("v100-16gb", "Tesla V100-SXM2-16GB",
           "v100", "pcie", 16, 16_945_512_448, V100, (7, 0), 80, 6 * _MIB,
           _QUERY),
    GpuRow("v100-32gb", "Tesla V100-SXM2-32GB",
           "v100", "pcie", 32, 34_072_559_616, V100, (7, 0), 80, 6 * _MIB,
           _QUERY),
    GpuRow("t4", "Tesla T4",
           "t4", "", 16, 15_835_660_288, T4, (7, 5), 40, 4 * _MIB,
           _QUERY),
    GpuRow("a10", "NVIDIA A10",
           "a10", "", 24, 23_609_475_072, like(RTX_3060), (8, 6), 72, 6 * _MIB,
           _QUERY),
    GpuRow("a10g", "NVIDIA A10G",
           "a10g", "", 24, 22_587 * _MIB, like(RTX_3060), (8, 6), 80, 6 * _MIB,
           _TORCH + "22587MB"),
    GpuRow("a30", "NVIDIA A30",
           "a30", "", 24, int(23.53 * _GIB), like(A100), (8, 0), 56, 24 * _MIB,
           _OOM + "23.53 GiB"),
    GpuRow("a40", "NVIDIA A40",
           "a40", "", 48, 45_416 * _MIB, like(RTX_3060), (8, 6), 84, 6 * _MIB,
           _TORCH + "45416MB"),
    GpuRow("l4", "NVIDIA L4",
           "l4", "", 24, 23_612_293_120, L4, (8, 9), 58, 48 * _MIB,
           _QUERY),
    GpuRow("l40", "NVIDIA L40",
           "l40", "", 48, int(44.39 * _GIB), like(RTX_6000_ADA), (8, 9), 142, 96 * _MIB,
           _TORCH + "44.39GB"),
    GpuRow("l40s", "NVIDIA L40S",
           "l40s", "", 48, 45_589 * _MIB, like(RTX_6000_ADA), (8, 9), 142, 96 * _MIB,
           _TORCH + "45589MB"),
    GpuRow("a100-40gb", "NVIDIA A100-SXM4-40GB",
           "a100", "", 40, 42_297_786_368, A100, (8, 0), 108, 40 * _MIB,
           _QUERY),
    GpuRow("a100-80gb", "NVIDIA A100-SXM4-80GB",
           "a100", "", 80, 85_097_971_712, A100, (8, 0), 108, 40 * _MIB,
           _OF_A_SIBLING + "A100 80GB PCIe, " + _BYTES),
    GpuRow("a100-pcie-40gb", "NVIDIA A100-PCIE-40GB",
           "a100 pcie", "", 40, 40_377 * _MIB, A100, (8, 0), 108, 40 * _MIB,
           _TORCH + "40377MiB"),
    GpuRow("a100-pcie-80gb", "NVIDIA A100 80GB PCIe",
           "a100 pcie", "", 80, 81_049 * _MIB, A100, (8, 0), 108, 40 * _MIB,
           _TORCH + "81049MB"),
    GpuRow("h100-80gb", "NVIDIA H100 80GB HBM3",
           "h100", "sxm 5", 80, 85_029_158_912, H100, (9, 0), 132, 50 * _MIB,
           _QUERY),
    GpuRow("h100-pcie", "NVIDIA H100 PCIe",
           "h100 pcie", "", 80, 81_008 * _MIB, like(H100), (9, 0), 114, 50 * _MIB,
           _TORCH + "81008MB"),
    GpuRow("h100-nvl", "NVIDIA H100 NVL",
           "h100 nvl", "", 94, 99_456_909_312, like(H100), (9, 0), 132, 50 * _MIB,
           _TORCH + "99456909312 bytes"),
    GpuRow("h800", "NVIDIA H800",
           "h800", "sxm 5", 80, 85_029_158_912, like(H100), (9, 0), 132, 50 * _MIB,
           _OF_A_SIBLING + "H100 80GB HBM3, " + _QUERY),
    GpuRow("h200", "NVIDIA H200",
           "h200", "sxm", 141, 143_156 * _MIB, like(H100), (9, 0), 132, 60 * _MIB,
           _TORCH + "143156MB, L2_cache_size=60MB"),
    GpuRow("b200", "NVIDIA B200",
           "b200", "sxm", 180, 182_631 * _MIB, like(H100), (10, 0), 148, 126 * _MIB,
           _TORCH + "182631MB, L2_cache_size=126MB"),
    GpuRow("a800-80gb", "NVIDIA A800-SXM4-80GB",
           "a800", "sxm 4", 80, 85_094_825_984, like(A100), (8, 0), 108, 40 * _MIB,
           _BYTES),
    GpuRow("a800-pcie-80gb", "NVIDIA A800 80GB PCIe",
           "a800 pcie", "", 80, 81_051 * _MIB, like(A100), (8, 0), 108, 40 * _MIB,
           _TORCH + "81051MiB"),
    GpuRow("h20-96gb", "NVIDIA H20",
           "h20", "sxm", 96, 97_285 * _MIB, like(H100), (9, 0), 78, 60 * _MIB,
           _TORCH + "97285MB"),
    # workstation
    GpuRow("rtx-a2000-12gb", "NVIDIA RTX A2000 12GB",
           "a2000", "rtx", 12, 12_017 * _MIB, RTX_A2000, (8, 6), 26, 3 * _MIB,
           _TORCH + "12017MiB"),
    GpuRow("rtx-a4000", "NVIDIA RTX A4000",
           "a4000", "rtx", 16, int(15.61 * _GIB), like(RTX_3060), (8, 6), 48, 4 * _MIB,
           _OOM + "15.61 GiB"),
    GpuRow("rtx-a5000", "NVIDIA RTX A5000",
           "a5000", "rtx", 24, 24_138 * _MIB, like(RTX_3060), (8, 6), 64, 6 * _MIB,
           _TORCH + "24138MB, L2_cache_size=6MB"),
    GpuRow("rtx-a6000", "NVIDIA RTX A6000",
           "a6000", "rtx", 48, 48_676 * _MIB, like(RTX_3060), (8, 6), 84, 6 * _MIB,
           _TORCH + "48676MB"),
    GpuRow("rtx-6000-ada", "NVIDIA RTX 6000 Ada Generation",
           "6000 ada", "rtx", 48, 48_622 * _MIB, RTX_6000_ADA, (8, 9), 142, 96 * _MIB,
           _TORCH + "48622MB"),
    GpuRow("rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition",
           "pro 6000", "workstation", 96, 97_250 * _MIB, like(RTX_5090), (12, 0), 188, 128 * _MIB,
           _TORCH + "97250MB, L2_cache_size=128MB"),
    GpuRow("quadro-rtx-8000", "Quadro RTX 8000",
           "rtx 8000", "", 48, 48_380 * _MIB, like(T4), (7, 5), 72, 6 * _MIB,
           _TORCH + "48380MiB"),
    GpuRow("titan-rtx", "NVIDIA TITAN RTX",
           "titan rtx", "", 24, 24_212 * _MIB, like(T4), (7, 5), 72, 6 * _MIB,
           _TORCH + "24212MiB"),
    # GeForce
    GpuRow("gtx-1080-ti", "NVIDIA GeForce GTX 1080 Ti",
           "1080 ti", "gtx", 11, 11_172 * _MIB, like(V100), (6, 1), 28, 11 * _MIB // 4,
           _TORCH + "11172MiB"),
    GpuRow("rtx-2060", "NVIDIA GeForce RTX 2060",
           "2060", "", 6, 5_918 * _MIB, like(T4), (7, 5), 30, 3 * _MIB,
           _TORCH + "5918MiB"),
    GpuRow("rtx-2060-super", "NVIDIA GeForce RTX 2060 SUPER",
           "2060 super", "", 8, 7_974 * _MIB, like(T4), (7, 5), 34, 4 * _MIB,
           _TORCH + "7974MB"),
    GpuRow("rtx-2070", "GeForce RTX 2070",
           "2070", "", 8, 8_370_061_312, like(T4), (7, 5), 36, 4 * _MIB,
           _QUERY),
    GpuRow("rtx-2080", "GeForce RTX 2080",
           "2080", "", 8, 8_335_327_232, like(T4), (7, 5), 46, 4 * _MIB,
           _QUERY),
    GpuRow("rtx-2080-ti", "NVIDIA GeForce RTX 2080 Ti",
           "2080 ti", "", 11, 11_012 * _MIB, like(T4), (7, 5), 68, 11 * _MIB // 2,
           _TORCH + "11012MiB"),
    GpuRow("rtx-3050", "NVIDIA GeForce RTX 3050",
           "3050", "", 8, 7_753 * _MIB, like(RTX_3060), (8, 6), 20, 2 * _MIB,
           _OF_A_SIBLING + "RTX 3070, the least of those with 8 GB, " + _TORCH + "7753MiB"),
    GpuRow("rtx-3060", "NVIDIA GeForce RTX 3060",
           "3060", "", 12, 12_552_044_544, RTX_3060, (8, 6), 28, 9 * _MIB // 4,
           _OOM + "11.69 GiB; its bytes are those of the records' virtual card"),
    GpuRow("rtx-3060-ti", "NVIDIA GeForce RTX 3060 Ti",
           "3060 ti", "", 8, 7_833 * _MIB, like(RTX_3060), (8, 6), 38, 4 * _MIB,
           _TORCH + "7833MiB"),
    GpuRow("rtx-3070", "NVIDIA GeForce RTX 3070",
           "3070", "", 8, 7_753 * _MIB, like(RTX_3060), (8, 6), 46, 4 * _MIB,
           _TORCH + "7753MiB"),
    GpuRow("rtx-3080-10gb", "NVIDIA GeForce RTX 3080",
           "3080", "", 10, 10_002 * _MIB, like(RTX_3060), (8, 6), 68, 5 * _MIB,
           _TORCH + "10002MiB"),
    GpuRow("rtx-3080-12gb", "NVIDIA GeForce RTX 3080",
           "3080", "", 12, 12_117 * _MIB, like(RTX_3060), (8, 6), 70, 6 * _MIB,
           _TORCH + "12117MiB"),
    GpuRow("rtx-3080-ti", "NVIDIA GeForce RTX 3080 Ti",
           "3080 ti", "", 12, 12_489_195_520, like(RTX_3060), (8, 6), 80, 6 * _MIB,
           _TORCH + "11910.625MB"),
    GpuRow("rtx-3090", "NVIDIA GeForce RTX 3090",
           "3090", "", 24, 24_124 * _MIB, like(RTX_3060), (8, 6), 82, 6 * _MIB,
           _TORCH + "24124MiB"),
    GpuRow("rtx-3090-ti", "NVIDIA GeForce RTX 3090 Ti",
           "3090 ti", "", 24, 24_110 * _MIB, like(RTX_3060), (8, 6), 84, 6 * _MIB,
           _TORCH + "24110MiB"),
    GpuRow("rtx-4060", "NVIDIA GeForce RTX 4060",
           "4060", "", 8, 7_807 * _MIB, like(L4), (8, 9), 24, 24 * _MIB,
           _TORCH + "7807MiB"),
    GpuRow("rtx-4060-ti-8gb", "NVIDIA GeForce RTX 4060 Ti",
           "4060 ti", "", 8, 7_806 * _MIB, like(L4), (8, 9), 34, 32 * _MIB,
           _TORCH + "7806MiB"),
    GpuRow("rtx-4060-ti-16gb", "NVIDIA GeForce RTX 4060 Ti",
           "4060 ti", "", 16, 16_722_821_120, like(L4), (8, 9), 34, 32 * _MIB,
           _QUERY),
    GpuRow("rtx-4070", "NVIDIA GeForce RTX 4070",
           "4070", "", 12, 11_994 * _MIB, like(L4), (8, 9), 46, 36 * _MIB,
           _TORCH + "11994MiB"),
    GpuRow("rtx-4070-ti", "NVIDIA GeForce RTX 4070 Ti",
           "4070 ti", "", 12, 12_007 * _MIB, like(L4), (8, 9), 60, 48 * _MIB,
           _TORCH + "12007MiB"),
    GpuRow("rtx-4070-ti-super", "NVIDIA GeForce RTX 4070 Ti SUPER",
           "4070 ti super", "", 16, 16_069 * _MIB, like(L4), (8, 9), 66, 48 * _MIB,
           _TORCH + "16069MiB"),
    GpuRow("rtx-4080", "NVIDIA GeForce RTX 4080",
           "4080", "", 16, 16_049 * _MIB, like(L4), (8, 9), 76, 64 * _MIB,
           _TORCH + "16049MB"),
    GpuRow("rtx-4080-super", "NVIDIA GeForce RTX 4080 SUPER",
           "4080 super", "", 16, 15_944 * _MIB, like(L4), (8, 9), 80, 64 * _MIB,
           _TORCH + "15944MiB"),
    GpuRow("rtx-4090", "NVIDIA GeForce RTX 4090",
           "4090", "", 24, 25_393_692_672, RTX_4090, (8, 9), 128, 72 * _MIB,
           _BYTES),
    GpuRow("rtx-5060-ti-16gb", "NVIDIA GeForce RTX 5060 Ti",
           "5060 ti", "", 16, 15_848 * _MIB, like(RTX_5090), (12, 0), 36, 32 * _MIB,
           _TORCH + "15848MiB"),
    GpuRow("rtx-5070", "NVIDIA GeForce RTX 5070",
           "5070", "", 12, 11_755 * _MIB, like(RTX_5090), (12, 0), 48, 48 * _MIB,
           "public log of hashcat's device list: 11755 MB"),
    GpuRow("rtx-5070-ti", "NVIDIA GeForce RTX 5070 Ti",
           "5070 ti", "", 16, 15_833 * _MIB, like(RTX_5090), (12, 0), 70, 48 * _MIB,
           _TORCH + "15833 MiB"),
    GpuRow("rtx-5080", "NVIDIA GeForce RTX 5080",
           "5080", "", 16, 15_840 * _MIB, like(RTX_5090), (12, 0), 84, 64 * _MIB,
           _TORCH + "15840MiB"),
    GpuRow("rtx-5090", "NVIDIA GeForce RTX 5090",
           "5090", "", 32, 33_677_180_928, RTX_5090, (12, 0), 170, 96 * _MIB,
           _QUERY),
    GpuRow("gtx-1650", "NVIDIA GeForce GTX 1650",
           "1650", "gtx", 4, 3_902 * _MIB, like(T4), (7, 5), 14, _MIB,
           _TORCH + "3902MB"),
    GpuRow("gtx-1660", "NVIDIA GeForce GTX 1660",
           "1660", "gtx", 6, 5_928 * _MIB, like(T4), (7, 5), 22, 3 * _MIB // 2,
           _TORCH + "5928MiB"),
    GpuRow("gtx-1660-super", "NVIDIA GeForce GTX 1660 SUPER",
           "1660 super", "gtx", 6, 5_928 * _MIB, like(T4), (7, 5), 22, 3 * _MIB // 2,
           _TORCH + "5928MiB"),
    GpuRow("gtx-1660-ti", "NVIDIA GeForce GTX 1660 Ti",
           "1660 ti", "gtx", 6, 5_936 * _MIB, like(T4), (7, 5), 24, 3 * _MIB // 2,
           _TORCH + "5936MB"),
    # laptops
    GpuRow("rtx-3050-laptop-4gb", "NVIDIA GeForce RTX 3050 Laptop GPU",
           "3050 laptop", "", 4, 3_953_393_664, like(RTX_3060), (8, 6), 16, 2 * _MIB,
           _BYTES),
    GpuRow("rtx-3050-laptop-6gb", "NVIDIA GeForce RTX 3050 6GB Laptop GPU",
           "3050 laptop", "", 6, 5_806 * _MIB, like(RTX_3060), (8, 6), 20, 2 * _MIB,
           _TORCH + "5806MB"),
    GpuRow("rtx-3050-ti-laptop", "NVIDIA GeForce RTX 3050 Ti Laptop GPU",
           "3050 ti laptop", "", 4, 3_902 * _MIB, like(RTX_3060), (8, 6), 20, 2 * _MIB,
           _TORCH + "3902MiB"),
    GpuRow("rtx-3060-laptop", "NVIDIA GeForce RTX 3060 Laptop GPU",
           "3060 laptop", "", 6, int(5.80 * _GIB), like(RTX_3060), (8, 6), 30, 3 * _MIB,
           _OOM + "5.80 GiB, of an RTX 3060 with 6 GB"),
    GpuRow("rtx-3070-laptop", "NVIDIA GeForce RTX 3070 Laptop GPU",
           "3070 laptop", "", 8, 7_982 * _MIB, like(RTX_3060), (8, 6), 40, 4 * _MIB,
           "public log of the card's memory: 7982MiB"),
    GpuRow("rtx-4050-laptop", "NVIDIA GeForce RTX 4050 Laptop GPU",
           "4050 laptop", "", 6, int(5.67 * _GIB), like(L4), (8, 9), 20, 12 * _MIB,
           _TORCH + "5.67 GiB"),
    GpuRow("rtx-3080-laptop-16gb", "NVIDIA GeForce RTX 3080 Laptop GPU",
           "3080 laptop", "", 16, 15_993 * _MIB, like(RTX_3060), (8, 6), 48, 4 * _MIB,
           _TORCH + "15993MiB"),
    GpuRow("rtx-4060-laptop", "NVIDIA GeForce RTX 4060 Laptop GPU",
           "4060 laptop", "", 8, 7_806 * _MIB, like(L4), (8, 9), 24, 32 * _MIB,
           _TORCH + "7806MiB"),
    GpuRow("rtx-4070-laptop", "NVIDIA GeForce RTX 4070 Laptop GPU",
           "4070 laptop", "", 8, 7_806 * _MIB, like(L4), (8, 9), 36, 32 * _MIB,
           _TORCH + "7806MiB"),
)
# fmt: on
