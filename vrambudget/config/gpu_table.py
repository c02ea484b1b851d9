"""The table of GPUs: what the driver says of each card, and who saw it say so.

One row a card, in the order in which an ambiguous name is resolved (`config.gpus.find_gpu`): of two
cards that a name fits, the one sold with less memory wins, then the earlier row.

- capacity: `torch.cuda.get_device_properties().total_memory`, which is `cudaMemGetInfo`'s total. It
  is less than the memory sold and than `nvidia-smi` shows, and moves by some MiB with the driver.
  A number known from a printed "23.69 GiB" is that number rounded down: its source says "printed".
- context: memory that the driver takes outside PyTorch's allocator once a process used the card.
  It depends on driver, loaded kernels and torch build: a measured constant, not a law.

Not in the table: cards for which no published capacity was found. `--gpu 11.69GiB` covers them.
"""

from dataclasses import dataclass

_MIB = 2**20

_PROJECT = "this project's reference cards"


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One card. `model`: the words that a spelling must have; `also`: words that it may have."""

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
    GpuRow("v100-16gb", "Tesla V100-SXM2-16GB", "v100", "sxm 2 pcie", 16,
           16_945_512_448, 310 * _MIB, (7, 0), 80, 6 * _MIB, _PROJECT, _PROJECT),
    GpuRow("t4", "Tesla T4", "t4", "", 16,
           15_835_660_288, 105 * _MIB, (7, 5), 40, 4 * _MIB, _PROJECT, _PROJECT),
    GpuRow("a100-40gb", "NVIDIA A100-SXM4-40GB", "a100", "sxm pcie", 40,
           42_297_786_368, 501 * _MIB, (8, 0), 108, 40 * _MIB, _PROJECT,
           "AgileRL: 501 MiB on an A100, torch 2.11 cu130, NVML around a one-element allocation"),
    GpuRow("a100-80gb", "NVIDIA A100-SXM4-80GB", "a100", "sxm pcie", 80,
           85_097_971_712, 501 * _MIB, (8, 0), 108, 40 * _MIB, _PROJECT,
           "AgileRL: 501 MiB on an A100, torch 2.11 cu130, NVML around a one-element allocation"),
    GpuRow("h100-80gb", "NVIDIA H100 80GB HBM3", "h100", "sxm 5", 80,
           85_029_158_912, 520 * _MIB, (9, 0), 132, 50 * _MIB, _PROJECT, _PROJECT),
    GpuRow("rtx-3060", "NVIDIA GeForce RTX 3060", "3060", "", 12,
           12_552_044_544, 225 * _MIB, (8, 6), 28, 9 * _MIB // 4, _PROJECT, _PROJECT),
    GpuRow("rtx-4090", "NVIDIA GeForce RTX 4090", "4090", "", 24,
           25_393_692_672, 450 * _MIB, (8, 9), 128, 72 * _MIB, _PROJECT, _PROJECT),
)
# fmt: on
