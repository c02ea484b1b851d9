"""A budget as a notebook shows it: the verdict, the bar, and the parts that are not zero.

The fragment contains its own styles. Text takes the notebook's colour, so it suits light and dark
themes.
"""

from vrambudget.budget import Budget
from vrambudget.escaping import escape
from vrambudget.files import text_beside
from vrambudget.report.bar import bar, pieces
from vrambudget.report.colours import COLOURS, OTHERS
from vrambudget.report.ledger import Ledger, ledger
from vrambudget.report.phrases import job_text, moments, notes, verdict

_STYLE = f"<style scoped>{text_beside(__file__, 'notebook.css')}</style>"
_GOOD, _BAD, _QUIET = "#2a9d63", "#d9463d", "opacity:.7"


def budget_html(budget: Budget) -> str:
    """Return the budget as an HTML fragment."""
    lines = ledger(budget)
    word, sentence = verdict(budget, lines)
    ink = "inherit" if budget.device is None else _GOOD if budget.fits else _BAD
    items = "".join(
        f'<div style="{_QUIET}">{escape(text)}</div>' for text in (*moments(budget), *notes(budget))
    )
    return (
        f'{_STYLE}<div class="vrambudget"><b style="color:{ink};font-size:17px">{word}</b> '
        f'{escape(sentence)}<div style="{_QUIET}">{escape(job_text(budget))}</div>'
        f"{bar(*pieces(budget, lines), _colour)}{_table(budget, lines)}{items}</div>"
    )


def _table(budget: Budget, lines: Ledger) -> str:
    rows = "".join(
        f'<tr><td><span style="color:{_colour(piece.name)}">&#9632;</span>'
        f" {escape(piece.name)}</td>"
        f'<td class="n">{piece.amount}</td></tr>'
        for piece in pieces(budget, lines)[0]
    )
    return f"<table>{rows}</table>"


def _colour(name: str) -> str:
    return (COLOURS | OTHERS)[name].light
