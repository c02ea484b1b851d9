"""What a detector reads, and what it returns."""

from dataclasses import dataclass

from vrambudget.oom.gpu_ledger import GpuLedger
from vrambudget.oom.message import OomMessage
from vrambudget.oom.request_match import Match, Request

SMALLER = (
    "lower the batch (and accumulate gradients), shorten the sequences, or checkpoint activations; "
    "`vrambudget fit` finds the largest batch that fits"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: a title, an explanation, the bytes that it concerns, and what to do."""

    title: str
    text: str
    bytes: int | None = None
    step: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a detector may read; `resident_bytes` is what the job always holds."""

    message: OomMessage
    ledger: GpuLedger
    phase: str | None = None
    history: tuple[int, ...] = ()  # allocated bytes, as the log shows them, oldest first
    matches: tuple[Match, ...] = ()
    requests: tuple[Request, ...] = ()
    resident_bytes: int | None = None

    @property
    def asked(self) -> int:
        """Return the bytes requested (0: the message does not say)."""
        return self.message.asked.bytes if self.message.asked else 0

    @property
    def alloc_conf(self) -> str:
        """Return the variable that configures the allocator."""
        return f"PYTORCH_{self.message.backend}_ALLOC_CONF"
