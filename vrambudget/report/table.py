"""A budget as text, 80 columns wide: the verdict first, what to try last.

verdict             fits or not, and by how much
job                 what was counted
ledger              the parts at the peak, each with how it is counted
moments             when the peak is, when the GPU is full
notes               what was assumed, what is not modelled

`render_next` says what to try: it may take longer to work out than all else, and comes last.
"""

import textwrap

from vrambudget.budget import Budget
from vrambudget.report.ledger import Ledger, LedgerLine, ledger
from vrambudget.report.phrases import job_text, moments, notes, verdict
from vrambudget.report.tabular import WIDTH, grid, printable

_GREEN, _RED, _PLAIN = "\x1b[1;32m", "\x1b[1;31m", "\x1b[0m"


def render_table(budget: Budget, *, colour: bool = False, markdown: bool = False) -> str:
    """Return the report as text, or as Markdown with the same words."""
    lines = ledger(budget)
    parts = [
        _verdict_line(budget, lines, colour=colour, markdown=markdown),
        "",
        *_wrapped(job_text(budget)),
        "",
        _grid(lines, markdown=markdown),
        "",
        *(line for text in moments(budget) for line in _wrapped(text)),
        *(line for text in notes(budget) for line in _wrapped(text)),
    ]
    return "\n".join(parts)


def render_next(advice: str) -> str:
    """Return the line that closes a report: what to try."""
    return "\n".join(_wrapped(f"next: {advice}"))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(printable(text), WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _verdict_line(budget: Budget, lines: Ledger, *, colour: bool, markdown: bool) -> str:
    word, *rest = verdict(budget, lines)
    text = "\n".join(_wrapped(f"{word}: {' '.join(rest)}"))
    if markdown:
        return text.replace(word, f"**{word}**", 1)
    if not colour or budget.device is None:
        return text
    return text.replace(word, f"{_GREEN if budget.fits else _RED}{word}{_PLAIN}", 1)


def _grid(lines: Ledger, *, markdown: bool) -> str:
    rows = [
        [_name(line), lines.amounts.text(line.hundredths), line.counted] for line in lines.lines
    ]
    headings = ["at the peak", lines.amounts.unit, "how counted"]
    return grid(rows, headings, ["left", "right", "left"], markdown=markdown)


def _name(line: LedgerLine) -> str:
    return f"= {line.name}" if line.is_total else f"  {line.name}"
