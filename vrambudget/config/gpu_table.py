"""The table of GPUs, `gpus.csv`: what the driver reports for each, and the source of each number.

- capacity: `torch.cuda.get_device_properties().total_memory`, which is `cudaMemGetInfo`'s total. It
  is less than the memory sold and than `nvidia-smi` shows, less on Linux than on Windows, and
  differs by some MiB between drivers: of several published numbers, the smallest seen on Linux.
  A number printed in MiB or GiB is known only to its last digit, and is rounded down. It was
  published for this GPU, or is borrowed from a sibling; none was measured here.
- context: what the driver takes outside PyTorch's allocator: a figure of `config.cuda_context`, or
  "like" one of a sibling.
- compute capability, multiprocessors, L2: from the same source, or NVIDIA's specification.

If a spelling fits two GPUs, the one sold with less memory is taken, then the earlier row.
Not in the table: GPUs that nobody asked for yet. `--gpu 11.69GiB` covers them.
"""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple, Self

from vrambudget.config.cuda_context import CudaContext, Kind, contexts, like
from vrambudget.files import csv_beside
from vrambudget.units import parse_bytes

_LIKE = "like "  # before the GPU whose context is borrowed


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

    @classmethod
    def of(cls, row: Mapping[str, str]) -> Self:
        """Return a line of the file."""
        context = contexts()[row["context"].removeprefix(_LIKE)]
        major, minor = map(int, row["compute_capability"].split("."))
        return cls(
            key=row["key"],
            name=row["name"],
            model=row["model"],
            also=row["also"],
            sold_gb=int(row["sold_gb"]),
            capacity_bytes=parse_bytes(row["capacity"]),
            context=like(context) if row["context"].startswith(_LIKE) else context,
            compute_capability=(major, minor),
            multiprocessors=int(row["multiprocessors"]),
            l2_bytes=parse_bytes(row["l2"]),
            source=row["source"],
        )

    @property
    def capacity_kind(self) -> Kind:
        """Whose figure the capacity is."""
        return "borrowed" if self.source.startswith("of a sibling: ") else "published"


@cache
def gpu_rows() -> tuple[GpuRow, ...]:
    """Return the table."""
    return tuple(GpuRow.of(row) for row in csv_beside(__file__, "gpus.csv"))
