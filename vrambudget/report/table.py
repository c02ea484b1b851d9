"""A budget as text, 80 columns wide or as asked for: the verdict first, what to try last.

verdict             fits or not, and by how much
job                 what is estimated
ledger              the parts at the peak, each with what it is
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


def render_table(
    budget: Budget, *, colour: bool = False, markdown: bool = False, width: int = WIDTH
) -> str:
    """Return the report as text, or as Markdown with the same words."""
    lines = ledger(budget)
    table = _grid(lines, markdown=markdown, width=width)
    parts = [
        _verdict_line(budget, lines, colour=colour, markdown=markdown, width=width),
        "",
        *_wrapped(job_text(budget), width, markdown=markdown),
        "",
        _coloured(table) if colour and not markdown else table,
        "",
        *(line for text in moments(budget) for line in _wrapped(text, width, markdown=markdown)),
        *(line for text in notes(budget) for line in _wrapped(text, width, markdown=markdown)),
    ]
    return "\n".join(parts)


def render_next(advice: str, *, width: int = WIDTH) -> str:
    """Return the line that closes a report: what to try."""
    return "\n".join(_wrapped(f"next: {advice}", width))


def _wrapped(text: str, width: int, *, markdown: bool = False) -> list[str]:
    text = printable(text, markdown=markdown)
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)


def _verdict_line(
    budget: Budget, lines: Ledger, *, colour: bool, markdown: bool, width: int
) -> str:
    word, *rest = verdict(budget, lines)
    text = "\n".join(_wrapped(f"{word}: {' '.join(rest)}", width, markdown=markdown))
    if markdown:
        return text.replace(word, f"**{word}**", 1)
    if not colour or budget.device is None:
        return text
    return text.replace(word, f"{_GREEN if budget.fits else _RED}{word}{_PLAIN}", 1)


def _coloured(table: str) -> str:
    """Return the table with a block in each part's colour, which pictures have too."""
    from vrambudget.report.colours import COLOURS  # noqa: PLC0415 - only terminals have them

    lines = table.splitlines()
    for n, line in enumerate(lines):
        part = next((name for name in COLOURS if line.startswith(f"  {name} ")), None)
        if part is not None:
            lines[n] = f"\x1b[38;5;{_of_256(COLOURS[part].dark)}m█{_PLAIN}{line[1:]}"
    return "\n".join(lines)


def _of_256(colour: str) -> int:
    """Return the nearest colour of the 6 x 6 x 6 cube that terminals of 256 colours have."""
    red, green, blue = (round(int(colour[at : at + 2], 16) / 255 * 5) for at in (1, 3, 5))
    return 16 + 36 * red + 6 * green + blue


def _grid(lines: Ledger, *, markdown: bool, width: int) -> str:
    rows = [
        [_name(line), lines.amounts.text(line.hundredths), line.explanation] for line in lines.lines
    ]
    headings = ["at the peak", lines.amounts.unit, "what it is"]
    text = grid(rows, headings, ["left", "right", "left"], markdown=markdown)
    if markdown or max(map(len, text.splitlines())) <= width:
        return text
    return grid([row[:2] for row in rows], headings[:2], ["left", "right"])  # a narrow terminal


def _name(line: LedgerLine) -> str:
    return f"= {line.name}" if line.is_total else f"  {line.name}"
