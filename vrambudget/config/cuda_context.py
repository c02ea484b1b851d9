"""The CUDA context: what the driver takes of a GPU outside PyTorch's allocator, and who said so.

It grows while a job runs, as kernels are loaded: at the start, with the first matrix product
(cuBLAS), with cuDNN or cuBLASLt, and with each group of NCCL. A training's peak comes after its
first products, so the figure is that for then where one was published, else the one there is.

    published   measured by others on this GPU; `lowest` to `highest` is what they saw
    borrowed    that of a sibling, with what the driver keeps for this GPU's own threads
    virtual     what this project's virtual GPU was set to; nobody measured it
    given       (of a capacity) as the user said, or as the driver says of this machine's GPU

It has two parts. The driver keeps memory for every thread that the GPU holds at once: 2 KiB, as six
GPUs show before anything is loaded (tests/test_gpus.py), so a smaller sibling takes less. The rest
is what libraries load: 43 to 94 MiB in most trainings, 250 in vLLM, 458 on the RTX A6000. Driver
and torch build decide, too: before lazy loading (CUDA 11.7) it was above 1 GiB. Not modelled: what
NCCL adds for each group, some hundred MiB.
"""

from typing import Literal, NamedTuple

Kind = Literal["published", "borrowed", "virtual", "given"]
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


def _seen(
    mib: int, least: int, most: float, threads: int, source: str, *, kind: Kind = "published"
) -> CudaContext:
    """Return a context, and the least and the most that others saw, in MiB."""
    return CudaContext(mib * _MIB, least * _MIB, int(most * _MIB), kind, source, threads)


def like(context: CudaContext) -> CudaContext:
    """Return the context of a sibling, for a GPU that nobody published one of."""
    return context._replace(kind="borrowed", source=f"of a sibling: {context.source}")


# Of a message "this process has X memory in use": X less what PyTorch reserved, to 10 MiB or so.
# fmt: off
T4 = _seen(131, 105, 134.875, 40 * 1024, "torch-preflight: 105 MiB on a T4 at the start, 131 after"
           " the first product, 135 after cuDNN; torch 2.11 cu128, mem_get_info")
V100 = _seen(366, 366, 366, 80 * 2048, "others: 366 MiB on a V100")
A100 = _seen(501, 481, 502, 108 * 2048,
             "AgileRL: 501 MiB on an A100, torch 2.11 cu130, NVML; others 481 to 502")
H100 = _seen(520, 520, 778, 132 * 2048, "others: 520 MiB on an H100 at the start, 778 in vLLM")
L4 = _seen(226, 226, 226, 58 * 1536, "AgileRL: 226 MiB on an L4, torch 2.11 cu130, NVML")
V100_OF_1_10 = _seen(1341, 1341, 1341, 80 * 2048, "Hugging Face: 1343 MiB on a V100 with one"
                     " tensor, whose segment is 2 MiB; torch 1.10, driver 460: nvidia-smi")
"""Before lazy loading (CUDA 11.7): every kernel is loaded at the start."""
RTX_A2000 = _seen(133, 133, 133, 26 * 1536, "others: 0.13 GiB on an RTX A2000, driver 575")
RTX_3060 = _seen(225, 225, 480, 0, "assumed; not measured on this GPU", kind="virtual")
RTX_A4000 = _seen(210, 210, 210, 48 * 1536,
                  "a message of an RTX A4000, torch 2.5 or newer: VGGT-Long, issue 6")
RTX_3080 = _seen(257, 257, 257, 68 * 1536, "a message of an RTX 3080, torch 2.5: libcom, issue 54")
RTX_3090 = _seen(450, 256, 450, 82 * 1536, "256 MiB on an RTX 3090 at the start, torch 2.7 cu128:"
                 " InvokeAI, issue 9413; a message of one in vLLM: vllm, issue 2140")
RTX_A6000 = _seen(710, 702, 710, 84 * 1536, "vramcalc 0.1.2: 702 MiB on an RTX A6000 after a"
                  " forward pass, 710 after training; torch 2.14 cu130, mem_get_info")
RTX_4060 = _seen(115, 115, 115, 24 * 1536,
                 "a message of an RTX 4060, torch 2.5 or newer: EdgeRegNet, issue 2")
RTX_4090 = _seen(471, 471, 471, 128 * 1536, "others: 471 MiB on an RTX 4090")
RTX_6000_ADA = _seen(429, 426, 429, 142 * 1536, "others: 426 MiB on an RTX 6000 Ada, torch 2.10"
                     " cu130, mem_get_info; 429 by a message: MTVCrafter, issue 21")
RTX_5090 = _seen(727, 604, 727, 170 * 1536,
                 "others: 0.59 to 0.71 GiB on an RTX 5090, driver 595; the larger")
