"""What a rehearsal found: frozen data, from which every report is made."""

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from vrambudget.report.memory_curve import MemoryCurve

if TYPE_CHECKING:
    from vrambudget.rehearse.servers.start import ServerStart

Ending = Literal[
    "finished",
    "steps",
    "timeout",
    "interrupt",
    "out of memory",
    "failed",
    "killed",
    "unrecorded",
    "ready",
]
Category = Literal["parameter", "gradient", "optimizer_state", "activation", "temporary", "other"]

CATEGORIES: tuple[Category, ...] = (
    "parameter",
    "gradient",
    "optimizer_state",
    "activation",
    "temporary",
    "other",
)


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """Memory that one line of Python asked for and that was alive at the peak."""

    category: Category
    requested_bytes: int
    count: int
    line: str  # "model.py:57 forward"


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """The most that tensors asked for in one phase; steps are iterations, numbered from 1."""

    step: int
    phase: str
    requested_bytes: int


@dataclass(frozen=True, slots=True)
class Moment:
    """What was alive at one moment; the categories add up to `requested_bytes`."""

    step: int
    phase: str
    line: str
    requested_bytes: int
    by_category: dict[Category, int]
    largest: tuple[HeldBlock, ...]


@dataclass(frozen=True, slots=True)
class RecordedOutOfMemory:
    """One request that the GPU could not serve. `handled`: the script caught it and went on."""

    requested_bytes: int
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    step: int
    stack: tuple[str, ...]  # the script's own lines, outermost first
    handled: bool


@dataclass(frozen=True, slots=True)
class GpuPeak:
    """One GPU of several that a process uses, and its own peaks."""

    gpu: int  # as in "cuda:1"
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A script's run on a virtual GPU; peaks are what `torch.cuda.max_memory_...` says.

    Of several GPUs in one process they are those of the fullest; `gpus` has each, if several
    were used.
    """

    command: tuple[str, ...]
    gpu: str
    capacity_bytes: int
    context_bytes: int
    versions: dict[str, str]
    ended: Ending
    exit_code: int
    error: str | None
    seconds: float
    steps: int  # iterations that are over
    step_unit: str  # what is counted: "optimizer step", "step of 2 optimizers", "backward pass"
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak: Moment | None
    phases: tuple[PhasePeak, ...]
    out_of_memory: tuple[RecordedOutOfMemory, ...]
    warnings: tuple[str, ...]
    gpus: tuple[GpuPeak, ...] = ()
    python: str = ""  # the interpreter that ran it
    server: "ServerStart | None" = None  # of an inference server
    curve: MemoryCurve | None = field(default=None, repr=False)  # where a page was asked for

    @property
    def device_peak_bytes(self) -> int:
        """What the GPU must hold: segments and CUDA context."""
        return self.peak_reserved_bytes + self.context_bytes

    @property
    def fits(self) -> bool:
        """Whether the script never ended for want of memory."""
        return self.ended != "out of memory"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        values = asdict(replace(self, curve=None))
        del values["curve"]  # that is for the page
        return {**values, "device_peak_bytes": self.device_peak_bytes, "fits": self.fits}
