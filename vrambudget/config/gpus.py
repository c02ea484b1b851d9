"""GPUs by name or size: `find_gpu("RTX 3060")`, `find_gpu("12GB")`, `find_gpu("11.69GiB")`.

A text may be one of these; `assumed` says what was filled in:

- a name in any common spelling ("a100-40gb", "A100 40GB", "NVIDIA A100-SXM4-40GB"): its row of
  `config.gpu_table`. If several GPUs share the name, the one with the least memory, so that what
  fits there also fits on the others;
- a size as sold ("12GB"): the most common GPU that is sold with it;
- an exact size ("11.69GiB", "12552044544B"): exactly that many bytes; kernels and CUDA context are
  those of the GPU nearest in capacity;
- "auto": what is free now on this machine's first NVIDIA GPU, according to its driver (NVML).

Several of one kind are written with their number, "8xh100", or as machines of so many, "2x8xh100"
(`count_of_gpus`).

Not modelled: different GPUs at once, MIG slices (write the slice's exact size), other vendors'.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vrambudget.budget import spare_bytes
from vrambudget.config.architectures import limits_of
from vrambudget.config.cuda_context import Kind, contexts, like
from vrambudget.config.driver import ask_driver
from vrambudget.config.gpu_table import GpuRow, gpu_rows
from vrambudget.config.old_torch import is_old
from vrambudget.config.settings import show
from vrambudget.errors import VramBudgetError, check_name, did_you_mean
from vrambudget.units import format_bytes, parse_bytes, whole_number

SOLD_AS = {
    4: "gtx-1650",
    6: "rtx-2060",
    8: "rtx-4060",
    10: "rtx-3080-10gb",
    11: "rtx-2080-ti",
    12: "rtx-3060",
    16: "rtx-4060-ti-16gb",
    24: "rtx-4090",
    32: "rtx-5090",
    40: "a100-40gb",
    48: "rtx-a6000",
    80: "a100-80gb",
    94: "h100-nvl",
    96: "rtx-pro-6000",
    141: "h200",
    180: "b200",
}
"""The GPU that a size as sold stands for: the most common one of that size."""
# Words that distinguish nothing: the vendor, and that it is a graphics card.
_NOISE = frozenset({"nvidia", "geforce", "tesla", "quadro", "gpu", "graphics", "gb", "gib"})
# Words of other makers' products.
_OTHER_VENDORS = frozenset(
    {
        "amd",
        "radeon",
        "rx",
        "instinct",
        "mi",
        "apple",
        "m",
        "mps",
        "intel",
        "arc",
        "gaudi",
        "tpu",
        "cpu",
    }
)
_WORD = re.compile(r"laptop|super|sxm|pcie|nvl|hbm|ada|pro|[rg]tx|ti(?!tan)|[a-z]+|\d+")
_SOLD = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*gb?\s*", re.IGNORECASE)
_MULTI_GPU = re.compile(
    r"\s*(?:([1-9]\d{0,3})\s*[x\u00d7*]\s*)?([1-9]\d{0,5})\s*[x\u00d7*]\s*(\S.*)", re.IGNORECASE
)
_BETWEEN_GPUS = re.compile(r"[,+;&]")
_COUNT_LAST = re.compile(r"(.*\d\S*?)\s*[x*:]\s*(\d{1,4})")  # "h100x8"
_HOSTS = {"colab": "a t4, or an l4 or a100-40gb that costs", "kaggle": "2xt4 or a p100"}
_HOSTS |= dict.fromkeys(("laptop", "notebook"), "a GPU with a name, such as 'rtx 4070 laptop'")
_EXACT = re.compile(r"\s*[+-]?([\d.]+|nan|inf)\s*[kmgt]?i?b\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as a job sees it, in bytes."""

    key: str  # "rtx-3060"; "" for a bare size
    name: str
    capacity_bytes: int
    context_bytes: int  # taken by the driver, outside PyTorch's allocator
    compute_capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    sold_gb: int | None
    source: str
    capacity_kind: Kind
    context_source: str
    context_kind: Kind
    context_range: tuple[int, int]  # bytes: the lowest and the highest that were published
    assumed: str | None = None  # what the text did not say and was filled in
    others: tuple[str, ...] = ()  # keys of the other GPUs that the text may mean

    @property
    def available_bytes(self) -> int:
        """What the GPU has for PyTorch's segments."""
        return self.capacity_bytes - self.context_bytes

    @property
    def spare_bytes(self) -> int:
        """What a plan leaves free by default: by how much the context may be larger."""
        return spare_bytes(self.context_bytes, *self.context_range)


def find_gpu(text: str | Gpu) -> Gpu:
    """Return the GPU that `text` means. Raises VramBudgetError with the nearest names if none."""
    if isinstance(text, Gpu):
        return text
    if not isinstance(text, str):
        raise VramBudgetError(
            f"gpu is {show(text)}; it should be text", hint="for example '12GB' or 'RTX 3060'"
        )
    check_name(text.strip(), "gpu")
    if text.strip().lower() == "auto":
        return _local_gpu()
    if sold := _SOLD.fullmatch(text):
        return _sold_as(text, sold[1])
    if _EXACT.fullmatch(text):
        return _exact_size(text)
    _check_one_kind(text)
    return _by_name(text)


def gpu_under(torch: str, gpu: Gpu) -> Gpu:
    """Return the GPU under this PyTorch: contexts were larger before lazy loading."""
    if not is_old(torch):
        return gpu
    seen = contexts()["v100-before-lazy-loading"]
    own = seen if gpu.key.startswith("v100") else like(seen)
    return replace(
        gpu,
        context_bytes=own.bytes,
        context_source=own.source,
        context_kind=own.kind,
        context_range=(own.lowest, own.highest),
    )


def count_of_gpus(text: str) -> tuple[int, str]:
    """Return how many GPUs a text means, and which: "8xh100" -> 8, "h100"; "2x8xh100" -> 16."""
    nodes, count, name = nodes_of_gpus(text)
    return nodes * count, name


def nodes_of_gpus(text: str) -> tuple[int, int, str]:
    """Return how many machines a text means, of how many GPUs each, and which GPU.

    Raises VramBudgetError for GPUs of several kinds ("2x16GB+24GB").
    """
    _check_one_kind(text)
    match = _MULTI_GPU.fullmatch(text)
    return (int(match[1] or 1), int(match[2]), match[3]) if match else (1, 1, text)


def _check_one_kind(text: str) -> None:
    parts = [part for part in _BETWEEN_GPUS.split(text) if part.strip()]
    if len(parts) < 2:  # noqa: PLR2004 - a mix has two
        return
    counts, names = zip(*map(count_of_gpus, parts), strict=True)
    least = min(names, key=lambda name: find_gpu(name).capacity_bytes).strip()
    raise VramBudgetError(
        f"{text.strip()!r} is a list of GPUs: a job is planned for GPUs of one kind",
        where="gpu",
        hint=f"--gpu {sum(counts)}x{least} takes each for the one with the least memory;"
        " `vrambudget run` spreads a GGUF file over different GPUs",
    )


def on_nodes(text: str | None, nodes: int | None) -> str | None:
    """Return the GPUs of so many machines, of which `text` names one's: 2 x "8xh100" -> "2x8xh100".

    Raises VramBudgetError where the number of machines is named twice, or no GPU is.
    """
    if nodes is None:
        return text
    if text is None:
        raise VramBudgetError("--nodes says how many machines; add --gpu, for example 8xh100")
    already, count, name = nodes_of_gpus(text)
    if already > 1 or nodes < 1:
        raise VramBudgetError(
            f"--nodes {nodes} with --gpu {text}: name the machines once, from 1",
            hint=f"write --gpu {max(nodes, 1)}x{count}x{name}",
        )
    return f"{nodes}x{count}x{name}"


def all_gpus() -> tuple[Gpu, ...]:
    """Return every GPU of the table, in its order."""
    return tuple(_gpu(row) for row in gpu_rows())


def _gpu(row: GpuRow, assumed: str | None = None) -> Gpu:
    context = row.context.on(row.multiprocessors * limits_of(row.compute_capability).threads)
    return Gpu(
        key=row.key,
        name=row.name,
        capacity_bytes=row.capacity_bytes,
        context_bytes=context.bytes,
        compute_capability=row.compute_capability,
        multiprocessors=row.multiprocessors,
        l2_bytes=row.l2_bytes,
        sold_gb=row.sold_gb,
        source=row.source,
        capacity_kind=row.capacity_kind,
        context_source=context.source,
        context_kind=context.kind,
        context_range=(context.lowest, context.highest),
        assumed=assumed,
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower())) - _NOISE


def _by_name(text: str) -> Gpu:
    for row in gpu_rows():
        if row.key == text.strip().lower():
            return _gpu(row)
    asked = _words(text)
    rows = [row for row in gpu_rows() if _is_spelling_of(asked, row)]
    if not rows and asked & _OTHER_VENDORS:
        raise VramBudgetError(
            f"{text!r} is not a known NVIDIA GPU: PyTorch's jobs are modelled on NVIDIA GPUs alone",
            where="gpu",
            hint="`vrambudget run MODEL --gpu GPU` answers for GGUF files on others; `vrambudget"
            " gpus` lists NVIDIA's; a size, such as 24GiB, is an NVIDIA GPU with so much memory",
        )
    if not rows:
        asked_for = text.strip().lower()
        near = did_you_mean(asked_for, [row.key for row in gpu_rows()])
        hint = f"{near or ''}{' else ' if near else ''}write its memory, such as 12GB or 11.69GiB;"
        if whole_number(asked_for) in SOLD_AS:
            hint = f"a GPU sold with that memory is '{asked_for}GB';"
        elif match := _COUNT_LAST.fullmatch(asked_for):
            hint = f"several GPUs are written {match[2]}x{match[1]};"
        elif asked_for in _HOSTS:
            hint = f"it has {_HOSTS[asked_for]};"
        raise VramBudgetError(
            f"{text!r} is not a known GPU",
            where="gpu",
            hint=f"{hint} `vrambudget gpus` lists all",
        )
    row = min(rows, key=lambda row: row.sold_gb)
    others = tuple(other.key for other in rows if other is not row)
    if not others:
        return _gpu(row)
    note = f"{text.strip()!r} is read as {row.key} (not {', '.join(others)})"
    return replace(_gpu(row, note), others=others)


def _is_spelling_of(asked: frozenset[str], row: GpuRow) -> bool:
    model = _words(row.model)
    return model <= asked <= model | _words(f"{row.name} {row.key} {row.also} {row.sold_gb}")


def _sold_as(text: str, number: str) -> Gpu:
    size = float(number)
    if size <= 0:
        raise VramBudgetError(
            f"{text.strip()!r} is no memory size: a GPU has more than 0 bytes", where="gpu"
        )
    key = SOLD_AS.get(int(size)) if size.is_integer() else None
    if key is None:
        raise VramBudgetError(
            f"no GPU of the table is sold with {text.strip()!r}",
            where="gpu",
            hint=f"write an exact size, for example {number}GiB, or one of "
            + ", ".join(f"{sold}GB" for sold in SOLD_AS),
        )
    row = next(row for row in gpu_rows() if row.key == key)
    seen = format_bytes(row.capacity_bytes, "GiB")
    return _gpu(row, f"{text.strip()!r} is read as the size sold: {row.name}, {seen}")


def _exact_size(text: str) -> Gpu:
    capacity = parse_bytes(text)
    if capacity <= 0:
        raise VramBudgetError(
            f"{text.strip()!r} is no memory size: a GPU has more than 0 bytes", where="gpu"
        )
    row = _nearest(gpu_rows(), capacity)
    return replace(
        _gpu(row, f"kernels and CUDA context are those of {row.name}"),
        key="",
        name=f"a GPU with {text.strip()}",
        capacity_bytes=capacity,
        sold_gb=None,
        source="as given",
        capacity_kind="given",
    )


def _nearest(rows: Sequence[GpuRow], capacity: int) -> GpuRow:
    return min(rows or gpu_rows(), key=lambda row: abs(row.capacity_bytes - capacity))


def gpu_with_free(name: str, capability: tuple[int, int], free_bytes: int, *, source: str) -> Gpu:
    """Return this machine's GPU, with the memory that is free now as its capacity."""
    asked = _words(name)
    rows = [row for row in gpu_rows() if _is_spelling_of(asked, row)]
    near = _nearest(
        rows or [row for row in gpu_rows() if row.compute_capability == capability], free_bytes
    )
    return replace(
        _gpu(near, f"{format_bytes(free_bytes, 'GiB')} free on this machine's {name}"),
        name=name,
        capacity_bytes=free_bytes,
        compute_capability=capability,
        source=source,
        capacity_kind="given",
    )


def _local_gpu() -> Gpu:
    name, free_bytes, capability = ask_driver()
    return gpu_with_free(name, capability, free_bytes, source="NVML: free at the moment")
