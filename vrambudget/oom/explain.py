"""Say in plain words what an out-of-memory message means.

`explain` takes the messages of one log (`parse_oom`), does the GPU's arithmetic for the first one
that has numbers, and lists the findings with what to do next. Given what a job requests and always
holds, it also names the tensor that was requested, and a second copy of it that is still held.

    messages = parse_oom(Path("train.log").read_text())
    print(render_explanation(explain(messages)))

Not modelled: several causes in one log (the first message is explained; a leak is looked for in
all messages of its rank and GPU).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vrambudget.errors import VramBudgetError
from vrambudget.oom import gpu_detectors as gpu
from vrambudget.oom import job_detectors as job
from vrambudget.oom.gpu_ledger import GpuLedger, GpuLedgerRow
from vrambudget.oom.log_lines import TracebackFrame
from vrambudget.oom.message import OomMessage
from vrambudget.oom.request_match import Request, match_request
from vrambudget.oom.scene import Finding, Scene
from vrambudget.report.tabular import wrapped
from vrambudget.units import format_bytes, unit_for

# The order of the findings: the cause before its circumstances.
_LOOKS: tuple[Callable[[Scene], Finding | None], ...] = (
    gpu.no_numbers,
    gpu.own_limit,
    gpu.spilled,
    gpu.fragmented,
    gpu.full_gpu,
    job.named_request,
    job.second_copy,
    job.growing,
    gpu.too_big,
    gpu.memory_was_free,
    gpu.shared_gpu,
    gpu.unnamed_use,
    job.beyond_the_gpu,
    job.late,
    gpu.outside_pytorch,
    gpu.cuda_graphs,
    gpu.seen_from_a_container,
)

_PHASES = {
    "backward": r"\bbackward\b|run_backward",
    "optimizer step": r"[\\/]optim[\\/]|optimizer\w{0,40}\.step\(",
    "loading": r"from_pretrained|load_state_dict|load_checkpoint",
    "evaluation": r"(?<![a-z])eval|validat|estimate_loss|(?<![a-z])test|predict|infer|generate",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What happened, as data: a headline, the GPU's ledger, and findings, the cause first."""

    headline: str
    where: TracebackFrame | None
    phase: str | None
    ledger: tuple[GpuLedgerRow, ...]
    findings: tuple[Finding, ...]
    message: OomMessage
    message_count: int

    @property
    def next_steps(self) -> tuple[str, ...]:
        """Return what to do, without repeats, in the order of the findings."""
        return tuple(dict.fromkeys(f.step for f in self.findings if f.step))


def explain(
    messages: Sequence[OomMessage],
    budget_events: Sequence[Request] = (),
    *,
    resident_bytes: int | None = None,
) -> Explanation:
    """Return what the messages mean.

    `budget_events` are requests that the job makes (to be matched with the size asked for),
    `resident_bytes` what it holds in any case at that moment (weights, optimizer states).
    Raises VramBudgetError where there is no message.
    """
    if not messages:
        raise VramBudgetError(
            "there is no message to explain", hint="read them with parse_oom(text)"
        )
    message = next((m for m in messages if m.has_numbers), messages[0])
    where = _users_frame(message.frames)
    scene = Scene(
        message=message,
        ledger=GpuLedger.of(message),
        phase=phase_of(message.frames),
        history=_history(messages, message),
        matches=match_request(message.asked, budget_events) if message.asked else (),
        requests=tuple(budget_events),
        resident_bytes=resident_bytes,
    )
    return Explanation(
        headline=_headline(message, scene.phase),
        where=where,
        phase=scene.phase,
        ledger=scene.ledger.rows(),
        findings=tuple(finding for look in _LOOKS if (finding := look(scene))),
        message=message,
        message_count=len(messages),
    )


def phase_of(frames: Sequence[TracebackFrame]) -> str | None:
    """Return the phase that a traceback shows ("backward", "evaluation", ...), or None."""
    for phase, pattern in _PHASES.items():
        own = phase == "evaluation"  # libraries have such words everywhere
        text = "\n".join(
            f"{frame.function} {frame.code}"
            if own
            else f"{frame.file} {frame.function} {frame.code}"
            for frame in frames
            if not (own and frame.is_library)
        )
        if re.search(pattern, text):
            return phase
    return None


def render_explanation(explanation: Explanation) -> str:
    """Return the explanation as text of at most 80 columns."""
    lines = wrapped(explanation.headline)
    if explanation.where:
        where = explanation.where
        code = f": {where.code}" if where.code else ""
        lines += wrapped(f"{where.file}:{where.line} in {where.function}{code}", "at ")
    if explanation.ledger:
        lines += ["", *_ledger_lines(explanation.ledger)]
    if explanation.message_count > 1:
        lines += ["", f"The log has {explanation.message_count} messages; this is the first."]
    lines += ["", "What happened"]
    for number, finding in enumerate(explanation.findings, start=1):
        lines += wrapped(finding.title, f"{number}. ")
        lines += wrapped(finding.text, "   ")
    if explanation.next_steps:
        lines += ["", "Next steps"]
        for step in explanation.next_steps:
            lines += wrapped(step, "- ")
    return "\n".join(lines)


def _headline(message: OomMessage, phase: str | None) -> str:
    gpu = f"GPU {message.gpu}" if message.gpu is not None else "the GPU"
    rank = f" (rank {message.rank})" if message.rank is not None else ""
    during = f" during {phase}" if phase else ""
    asked = f": {message.asked.text} asked for" if message.asked else ""
    free = f", {message.free.text} free" if message.free else ""
    return f"Out of memory on {gpu}{rank}{during}{asked}{free}."


def _users_frame(frames: Sequence[TracebackFrame]) -> TracebackFrame | None:
    """Return the innermost frame of the user's own code, or the innermost of all."""
    own = [frame for frame in frames if not frame.is_library]
    innermost = own or frames
    return innermost[-1] if innermost else None


def _history(messages: Sequence[OomMessage], one: OomMessage) -> tuple[int, ...]:
    """Return what the log shows as allocated for the rank and GPU of `one`, without repeats."""
    sizes: list[int] = []
    for message in messages:
        if (message.rank, message.gpu) != (one.rank, one.gpu):
            continue
        now = (message.allocated.bytes,) if message.allocated else ()
        for size in (*message.logged_allocated, *now):
            if not sizes or size != sizes[-1]:
                sizes.append(size)
    return tuple(sizes)


def _ledger_lines(rows: Sequence[GpuLedgerRow]) -> list[str]:
    unit = unit_for(rows[0].bytes)
    width = max(len(row.label) + 2 * row.depth for row in rows)
    return [
        f"  {'  ' * row.depth + row.label:{width}}  {format_bytes(row.bytes, unit):>12}"
        for row in rows
    ]
