"""A budget as people read it, 80 columns wide: the verdict first, what to try last.

verdict             fits or not, and by how much
job                 what was counted
ledger              the parts at the worst moment, each with how it is counted
moments             when the peak comes, when the card is full
notes               what was assumed, what is not modelled
next                what to try
"""

import textwrap
from collections.abc import Iterator

from vrambudget.budget import Budget
from vrambudget.report.ledger import Ledger, Line, ledger
from vrambudget.report.rows import grid, printable
from vrambudget.units import format_bytes

WIDTH = 80
_GREEN, _RED, _PLAIN = "\x1b[1;32m", "\x1b[1;31m", "\x1b[0m"


def render_table(
    budget: Budget, *, advice: str | None = None, colour: bool = False, markdown: bool = False
) -> str:
    """Return the report as text, or as Markdown with the same words."""
    lines = ledger(budget)
    parts = [
        _verdict_line(budget, lines, colour=colour, markdown=markdown),
        "",
        *_wrapped(_job(budget)),
        "",
        _grid(lines, markdown=markdown),
        "",
        *(line for text in _moments(budget) for line in _wrapped(text)),
        *(line for text in _notes(budget) for line in _wrapped(text)),
        *(["", *_wrapped(f"next: {advice}")] if advice else []),
    ]
    return "\n".join(parts)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(printable(text), WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _verdict_line(budget: Budget, lines: Ledger, *, colour: bool, markdown: bool) -> str:
    word, *rest = _verdict(budget, lines)
    text = "\n".join(_wrapped(f"{word}: {' '.join(rest)}"))
    if markdown:
        return text.replace(word, f"**{word}**", 1)
    if not colour or budget.device is None:
        return text
    return text.replace(word, f"{_GREEN if budget.fits else _RED}{word}{_PLAIN}", 1)


def _verdict(budget: Budget, lines: Ledger) -> tuple[str, str]:
    """Return the verdict's word and sentence, in the numbers that the ledger prints."""
    printed = {line.name: lines.amounts.text(abs(line.hundredths)) for line in lines.lines}
    unit, device = lines.amounts.unit, budget.device
    least = "at least " if budget.not_modelled else ""
    if device is None:
        reserved, allocated = printed["peak reserved"], printed["peak allocated"]
        return "PEAK", f"{least}{reserved} {unit} reserved, {allocated} {unit} allocated"
    total, capacity, left = printed["device total"], printed["capacity"], printed["left"]
    needs = f"{least}{total} of {capacity} {unit} on {device.name}"
    if not device.fits:
        return "DOES NOT FIT", f"{needs}: {left} {unit} short"
    if device.headroom_bytes < 0:
        return "FITS", f"{needs}, just: PyTorch gives cached segments back to get there"
    return "FITS", f"{needs}: {left} {unit} left"


def _job(budget: Budget) -> str:
    job = budget.job
    words = [f"batch {job['batch']}", f"block {job['block']}", job["mode"], job["precision"]]
    if job["mode"] == "train":
        implementation = job["optimizer_impl"] or "PyTorch's default"
        words.append(f"{job['optimizer']} ({implementation})")
        words += [f"clip {job['clip']}"] if job["clip"] is not None else []
        words += [f"{job['grad_accum']} micro-batches"] if job["grad_accum"] > 1 else []
        words += ["checkpointing"] if job["checkpointing"] == "full" else []
        words += [f"LoRA rank {job['lora_rank']}"] if job.get("lora_rank") else []
    words += [f"{job['attention']} attention", f"torch {job['torch']}"]
    return f"{budget.model}, {budget.parameters.total:,} parameters: {', '.join(words)}"


def _grid(lines: Ledger, *, markdown: bool) -> str:
    rows = [
        [_name(line), lines.amounts.text(line.hundredths), line.counted] for line in lines.lines
    ]
    headings = ["at the peak", lines.amounts.unit, "how counted"]
    return grid(rows, headings, ["left", "right", "left"], markdown=markdown)


def _name(line: Line) -> str:
    return f"= {line.name}" if line.is_total else f"  {line.name}"


def _moments(budget: Budget) -> Iterator[str]:
    peak, steps, failure = budget.peak, len(budget.steps), budget.out_of_memory
    when = f"step {peak.step + 1} of {steps}, {_phase(peak.phase)}, {peak.operation}"
    yield f"the peak comes in {when}"
    if failure is not None:
        asked = format_bytes(failure.requested_bytes)
        held = format_bytes(failure.allocated_bytes)
        yield (
            f"out of memory in step {failure.step + 1}, {_phase(failure.phase)}:"
            f" {failure.operation} asks for {asked} with {held} allocated"
        )


def _phase(phase: str) -> str:
    return phase.replace("_", " ")


def _notes(budget: Budget) -> Iterator[str]:
    for missing in budget.not_modelled:
        yield f"not modelled: {missing}: the numbers are a lower bound"
    for warning in budget.warnings:
        yield f"note: {warning}"
