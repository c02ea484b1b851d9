"""Read the numbers of PyTorch's out-of-memory messages from any log.

Every form since torch 1.0 is read (CUDA and ROCm), from `c10/cuda/CUDACachingAllocator.cpp` and
`CUDAMallocAsyncAllocator.cpp` of each age:

    1.0 - 1.3   (GPU 0; T total capacity; A already allocated; F free; U cached)
    1.4 - 2.0   (GPU 0; T total capacity; A already allocated; F free; [L allowed;]
                R reserved in total by PyTorch)
    2.1 -       GPU 0 has a total capac(i)ty of T of which F is free.
                [Process N has P memory in use.]*
                [Including non-PyTorch memory, this process has P memory in use.] [L allowed;]
                Of the allocated memory A is allocated by PyTorch,
                [with G allocated in private pools] and U is reserved by PyTorch but unallocated.
    async       Allocation on device 0 would exceed allowed memory. Currently allocated: A ...

"cached" is what the allocator holds and no tensor uses (U), not R. In the newest form A includes G:
the free blocks inside the pools of CUDA graphs. Numbers come with two decimals, so each is kept as
`Printed`: bytes, and the largest rounding error. A number of 2**63 bytes or more is the driver's
"not known" (WSL2) and becomes None. The text may be coloured, prefixed by ranks, mixed with
progress bars and wrapped anywhere: it is read with all white space removed.

Not modelled: messages in other words than PyTorch's own (frameworks that rewrite them).
"""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from itertools import zip_longest
from typing import Self

from vrambudget.errors import VramBudgetError
from vrambudget.oom.log_lines import (
    LogLine,
    TracebackFrame,
    frames_before,
    progress_before,
    streams,
    without_progress,
)
from vrambudget.units import parse_bytes

_UNIT_BYTES = {
    "bytes": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "eb": 2**60,  # "Tried to allocate more than 1EB memory": a size that overflowed
}
_NOT_KNOWN = 2**63
_LONGEST_MESSAGE = 2000  # characters without white space; eight other processes take 300

_NUMBER = r"(?<!\d)(\d++(?:\.\d+)?)(bytes|[kmgt]ib|eb)"
_SIZE = re.compile(_NUMBER)
_START = re.compile(  # which letters begin one is said first: that is four times as fast
    r"(?=[chta])(?:(?:(cuda|hip)outofmemory\W{0,3})?triedtoallocate|allocationondevice"
    r"|(cuda|hip)error:outofmemory|(?<=error:)(cuda|hip)outofmemory)"
)
_ERROR = re.compile(
    r"(torch\.cuda\.OutOfMemoryError|(?:torch\.)?OutOfMemoryError|torch\.AcceleratorError|RuntimeError)\W{0,3}$"
)
_GPU = re.compile(r"gpu(\d+)(?:;|has)|allocationondevice(\d+)")
_PROCESS = re.compile(rf"process(\d+)has{_NUMBER}memoryinuse")
_LOGGED = re.compile(r"allocated[^\d\n]{0,20}(\d{1,15}(?:\.\d{1,9})?\s?[KMGT]i?B)\b", re.IGNORECASE)
_FORMS = (  # of a size: its name, what stands before it and after it
    ("asked", "triedtoallocate", ""),
    ("asked", "triedtoallocatemorethan", ""),
    ("asked", "requested:", ""),
    ("capacity", "totalcapacityof", ""),
    ("capacity", "totalcapactyof", ""),
    ("capacity", "", "totalcapacity"),
    ("capacity", "devicelimit:", ""),
    ("free", "ofwhich", "isfree"),
    ("free", "", "free;"),
    ("free", "", "free)"),
    ("free", "free(accordingtocuda):", ""),
    ("this_process", "thisprocesshas", "memoryinuse"),
    ("allowed", "", "allowed;"),
    ("allowed", "memoryfraction):", ""),
    ("allocated", "memory", "isallocatedby"),
    ("allocated", "", "alreadyallocated"),
    ("allocated", "currentlyallocated:", ""),
    ("private_pools", "with", "allocatedinprivatepools"),
    ("unallocated", "", "isreservedbypytorchbutunallocated"),
    ("unallocated", "", "cached)"),
    ("reserved", "", "reservedintotal"),
)


@dataclass(frozen=True, slots=True)
class Printed:
    """A size as a message prints it: `text`, its bytes, and the largest rounding error."""

    text: str
    bytes: int
    half_width: int

    @classmethod
    def read(cls, number: str, unit: str) -> Self:
        """Return "6.14", "GiB" as 6592774799 bytes, give or take 5368710."""
        scale = _UNIT_BYTES[unit.lower()]
        digits = Decimal(number)
        step = Decimal(scale) * Decimal(10) ** int(digits.as_tuple().exponent)
        half_width = 0 if scale == 1 else int(step / 2) + 1
        return cls(f"{number} {unit}", round(digits * scale), half_width)

    def holds(self, n: int) -> bool:
        """Return whether `n` bytes would print like this."""
        return abs(n - self.bytes) <= self.half_width


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What the driver says that one process on the GPU uses."""

    pid: int
    used: Printed


@dataclass(frozen=True, slots=True)
class OomMessage:
    """One message: its numbers (None where it does not say), and where in the log it stood."""

    error: str | None
    backend: str
    line: int
    rank: int | None = None
    gpu: int | None = None
    asked: Printed | None = None
    capacity: Printed | None = None
    free: Printed | None = None
    allowed: Printed | None = None
    this_process: Printed | None = None
    processes: tuple[ProcessUse, ...] = ()
    allocated: Printed | None = None
    private_pools: Printed | None = None
    unallocated: Printed | None = None
    reserved: Printed | None = None
    frames: tuple[TracebackFrame, ...] = ()
    step: int | None = None  # the last progress that the log showed before
    logged_allocated: tuple[int, ...] = ()  # "allocated 3.1 GB" lines since the message before

    @property
    def has_numbers(self) -> bool:
        """Return whether the message names the size that was asked for."""
        return self.asked is not None


def parse_oom(text: str) -> list[OomMessage]:
    """Return the messages in `text`, in its order. Raises VramBudgetError where there is none."""
    found = messages_in(text)
    if not found:
        raise no_message(text)
    return found


def no_message(text: str) -> VramBudgetError:
    """Return the error that a text has none."""
    lines = text.count("\n") + (text[-1:] not in ("", "\n"))
    return VramBudgetError(
        f"no CUDA out-of-memory message found (lines read: {lines})", hint=_hint(text)
    )


def messages_in(text: str) -> list[OomMessage]:
    """Return the messages in `text`, in its order; empty where there is none."""
    found = [m for rank, lines in streams(text).items() for m in _in_stream(rank, lines)]
    return sorted(found, key=lambda message: message.line)


def _in_stream(rank: int | None, lines: list[LogLine]) -> Iterable[OomMessage]:
    """Yield the messages of one rank's lines."""
    compact, offsets = _squeeze(lines)
    small = compact.replace("İ", "I").lower()  # no other letter has more than one small one
    starts = [*_START.finditer(small)]
    seen = 0
    for start, following in zip_longest(starts, starts[1:]):
        end = following.start() if following else len(compact)
        at = bisect_right(offsets, start.start()) - 1
        before = lines[seen : at + 1]
        seen = at + 1
        error = _ERROR.search(compact, max(0, start.start() - 60), start.start())
        backend = next((g for g in start.groups() if g), "CUDA").upper()
        part = slice(start.start(), min(end, start.start() + _LONGEST_MESSAGE))
        body, printed = small[part], compact[part]
        yield OomMessage(
            error=error[1] if error else None,
            backend=backend,
            line=lines[at].number,
            rank=rank,
            gpu=_gpu(body),
            processes=_processes(body, printed),
            frames=frames_before(before),
            step=progress_before(before),
            logged_allocated=_logged_allocated(before),
            **_sizes(body, printed),
        )


def _squeeze(lines: list[LogLine]) -> tuple[str, list[int]]:
    """Return the lines' text without white space, and where in it each line starts."""
    squeezed = ["".join(without_progress(line.text).split()) for line in lines]
    offsets = [0]
    for part in squeezed:
        offsets.append(offsets[-1] + len(part))
    return "".join(squeezed), offsets[:-1]


def _sizes(body: str, printed: str) -> dict[str, Printed | None]:
    """Return the sizes that stand in one of their forms, by name; `printed` has large letters."""
    found = dict[str, Printed | None]()
    for match in _SIZE.finditer(body):
        start, end = match.span()
        for name, before, after in _FORMS:
            if body.endswith(before, 0, start) and body.startswith(after, end):
                size = Printed.read(match[1], printed[match.start(2) : end])
                found.setdefault(name, size if size.bytes < _NOT_KNOWN else None)
    return found


def _processes(body: str, printed: str) -> tuple[ProcessUse, ...]:
    uses = (
        ProcessUse(int(m[1]), Printed.read(m[2], printed[m.start(3) : m.end(3)]))
        for m in _PROCESS.finditer(body)
    )
    return tuple(use for use in uses if use.used.bytes < _NOT_KNOWN)


def _gpu(body: str) -> int | None:
    match = _GPU.search(body)
    return int(match[1] or match[2]) if match else None


def _logged_allocated(lines: list[LogLine]) -> tuple[int, ...]:
    """Return the allocated memory that a script's own lines (all but the last) show."""
    hits = (_LOGGED.search(line.text) for line in lines[:-1])
    return tuple(parse_bytes(hit[1]) for hit in hits if hit)


def _hint(text: str) -> str:
    if any(word in text for word in ("DefaultCPUAllocator", "MemoryError", "Killed")):
        return "this log is about the machine's own memory (RAM), not about a GPU's"
    return "pass the lines with 'CUDA out of memory. Tried to allocate ...', or the whole log"
