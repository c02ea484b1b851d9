"""The CUDA context: what the driver takes of a GPU outside PyTorch's allocator, and who said so.

It grows while a job runs, as kernels are loaded: at the start, with the first matrix product
(cuBLAS), with cuDNN or cuBLASLt, and with each group of NCCL. A training's peak comes after its
first products, so the figure is that for then where one was published, else the one there is.

    measured    by this project on this GPU (tests/records/measured); `lowest` to `highest` was seen
    published   measured by others on this GPU, likewise
    borrowed    that of a sibling, with what the driver keeps for this GPU's own threads
    virtual     what this project's virtual GPU was set to; nobody measured it
    given       (of a capacity) as the user said, or as the driver says of this machine's GPU

It has two parts. The driver keeps memory for every thread that the GPU holds at once: 2 KiB, as six
GPUs show before anything is loaded (tests/test_gpus.py), so a smaller sibling takes less. The rest
is what libraries load: 43 to 94 MiB in most trainings, 250 in vLLM, 458 on the RTX A6000. Driver
and torch build decide, too: before lazy loading (CUDA 11.7) it was above 1 GiB. Not modelled: what
NCCL adds for each group, some hundred MiB.

`cuda_contexts.csv` has the figures, with the threads of the GPU on which each was seen. A message
"this process has X memory in use" says X less what PyTorch reserved, to 10 MiB or so. Before lazy
loading (CUDA 11.7) every kernel was loaded at the start.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from vrambudget.files import csv_beside
from vrambudget.units import parse_bytes

Kind = Literal["measured", "published", "borrowed", "virtual", "given"]
_MIB, _OF_A_THREAD = 2**20, 2 * 2**10


class CudaContext(NamedTuple):
    """The figure for a job, and the range of published ones; the same where there is only one."""

    bytes: int
    lowest: int
    highest: int
    kind: Kind
    source: str
    threads: int  # that the GPU of the figure holds at once; 0 where nobody saw the figure

    def on(self, threads: int) -> "CudaContext":
        """Return the context of a GPU that holds so many threads, if this is a sibling's."""
        more = (threads - self.threads) * _OF_A_THREAD
        if self.kind != "borrowed" or not self.threads or not more:
            return self
        of = (self.bytes + more, self.lowest + more, self.highest + more, self.kind)
        by = f"{abs(more) / _MIB:.0f} MiB {'more' if more > 0 else 'less'} for resident threads"
        return CudaContext(*of, f"{self.source}; {by}", threads)


def like(context: CudaContext) -> CudaContext:
    """Return the context of a sibling, for a GPU that nobody published one of."""
    return context._replace(kind="borrowed", source=f"of a sibling: {context.source}")


@cache
def contexts() -> Mapping[str, CudaContext]:
    """Return what was seen on GPUs, by their names."""
    return {row["name"]: _context(row) for row in csv_beside(__file__, "cuda_contexts.csv")}


def _context(row: Mapping[str, str]) -> CudaContext:
    assumed, lowest, highest = (parse_bytes(row[name]) for name in ("assumed", "lowest", "highest"))
    kind: Any = row["kind"]
    return CudaContext(assumed, lowest, highest, kind, row["source"], int(row["threads"]))
