"""The CUDA context: what the driver takes of a GPU outside PyTorch's allocator, and who said so.

It grows while a job runs, as kernels are loaded: at the start, with the first matrix product
(cuBLAS), with cuDNN or cuBLASLt, and with each group of NCCL. A training's peak comes after its
first products, so the figure is that for then where one was published, else the one there is.

    published   measured by others on this GPU; `lowest` to `highest` is what they saw
    borrowed    that of a sibling
    virtual     what this project's virtual GPU was set to; nobody measured it
    given       (of a capacity) as the user said, or as the driver says of this machine's GPU

It depends on driver and torch build too: with lazy loading (CUDA 11.7 and later); before that it
was above 1 GiB. Not modelled: what NCCL adds for each group, some hundred MiB.
"""

from typing import Literal, NamedTuple

Kind = Literal["published", "borrowed", "virtual", "given"]
_MIB = 2**20


class CudaContext(NamedTuple):
    """The figure for a job, and the range of published ones; the same where there is only one."""

    bytes: int
    lowest: int
    highest: int
    kind: Kind
    source: str


def _published(source: str, mib: int, lowest: int = 0, highest: int = 0) -> CudaContext:
    """Return what was published, in MiB; the range where others saw other figures."""
    least, most = (lowest or mib) * _MIB, (highest or mib) * _MIB
    return CudaContext(mib * _MIB, least, most, "published", source)


def like(context: CudaContext) -> CudaContext:
    """Return the context of a sibling, for a GPU that nobody published one of."""
    return context._replace(kind="borrowed", source=f"of a sibling: {context.source}")


T4 = CudaContext(
    137_363_456,
    110_100_480,
    141_426_688,
    "published",
    "torch-preflight: 105 MiB on a T4 at the start, 131 after the first product, 135 after cuDNN;"
    " torch 2.11 cu128, mem_get_info",
)
V100 = _published("others: 366 MiB on a V100", 366)
A100 = _published(
    "AgileRL: 501 MiB on an A100, torch 2.11 cu130, NVML; others 481 to 502", 501, 481, 502
)
H100 = _published("others: 520 MiB on an H100 at the start, 778 in vLLM", 520, highest=778)
L4 = _published("AgileRL: 226 MiB on an L4, torch 2.11 cu130, NVML", 226)
V100_OF_1_10 = _published(
    "Hugging Face: 1343 MiB on a V100 with one tensor, whose segment is 2 MiB; torch 1.10,"
    " driver 460: nvidia-smi",
    1341,
)
"""Before lazy loading (CUDA 11.7): every kernel is loaded at the start."""
RTX_A2000 = _published("others: 0.13 GiB on an RTX A2000, driver 575", 133)
RTX_3060 = CudaContext(
    225 * _MIB, 225 * _MIB, 480 * _MIB, "virtual", "assumed; not measured on this GPU"
)
# Of a message "this process has X memory in use" the context is X less what PyTorch has reserved,
# to 10 MiB or so.
RTX_A4000 = _published("a message of an RTX A4000, torch 2.5 or newer: VGGT-Long, issue 6", 210)
RTX_3080 = _published("a message of an RTX 3080, torch 2.5 on: libcom, issue 54", 257)
RTX_3090 = _published("a message of an RTX 3090 in vLLM: vllm, issue 2140", 450)
RTX_A6000 = _published(
    "vramcalc 0.1.2: 702 MiB on an RTX A6000 after a forward pass, 710 after"
    " training; torch 2.14 cu130, mem_get_info",
    710,
    702,
)
RTX_4060 = _published("a message of an RTX 4060, torch 2.5 or newer: EdgeRegNet, issue 2", 115)
RTX_4090 = _published("others: 471 MiB on an RTX 4090", 471)
RTX_6000_ADA = _published(
    "others: 426 MiB on an RTX 6000 Ada, torch 2.10 cu130, mem_get_info; 429 by a"
    " message: MTVCrafter, issue 21",
    429,
    426,
)
RTX_5090 = _published("others: 0.59 to 0.71 GiB on an RTX 5090, driver 595; the larger", 727, 604)
