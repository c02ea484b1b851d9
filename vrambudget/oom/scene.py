"""What a detector reads, and what it returns."""

from dataclasses import dataclass

from vrambudget.files import toml_beside
from vrambudget.oom.gpu_ledger import GpuLedger
from vrambudget.oom.known import said
from vrambudget.oom.message import OomMessage
from vrambudget.oom.request_match import Match, Request
from vrambudget.units import format_bytes

_SAID = toml_beside(__file__, "findings.toml")
_SHARED = _SAID.pop("shared")


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: a title, an explanation, the bytes that it concerns, and what to do."""

    title: str
    text: str
    bytes: int | None = None
    step: str = ""


def finding(key: str, nbytes: int | None = None, /, *also: str, **given: int | str) -> Finding:
    """Return what `findings.toml` says under a key, with the sentences that are named `also`.

    `given`: what its names stand for, texts, or sizes in bytes.
    """
    own = _SAID[key]
    names = {k: x if isinstance(x, str) else format_bytes(x) for k, x in given.items()}
    what = (_whole(each) for each in (*own["what"], *(own[each] for each in also)))
    title, step = own["title"].format_map(names), _whole(own.get("step", "")).format_map(names)
    return Finding(title, " ".join(said(what, names)), nbytes, step)


def _whole(text: str) -> str:
    """Return a text, or the one that several say."""
    return str(_SHARED[text[1:]]) if text.startswith("@") else text


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
