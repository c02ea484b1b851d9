"""One self-contained page: verdict, breakdown, the timeline of the steps, every part.

The page needs no network and, but for pointing at moments of the timeline, no script. `page.html`
beside this file is its frame; `page.css` and `page.js` are put into it whole. The planner shows the
same sections.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from vrambudget import __version__
from vrambudget.budget import Budget
from vrambudget.escaping import escape
from vrambudget.estimator import Traced
from vrambudget.files import text_beside
from vrambudget.report.bar import BarPiece, bar, pieces
from vrambudget.report.colours import COLOURS, OTHERS, css, slug, stacked
from vrambudget.report.ledger import Ledger, ledger
from vrambudget.report.memory_curve import MemoryCurve, memory_curve
from vrambudget.report.phrases import job_text, moments, notes, phase_text, verdict
from vrambudget.report.plot import plot
from vrambudget.units import bytes_in

if TYPE_CHECKING:
    from vrambudget.planning.advised import Advice

beside = partial(text_beside, __file__)
"""Returns the text of a file that lies beside this one."""


def page(traced: Traced) -> str:
    """Return the page."""
    budget = traced.budget
    plotted, data = plot_of(traced)
    advice = _advice(traced) if budget.fits is False else ""
    title = f"{budget.model}: {': '.join(verdict(budget, ledger(budget)))}"
    body = f"{sections(budget, plotted)}{advice}"
    return document(title, body, data, f"Predicted by vrambudget {__version__}")


def document(title: str, body: str, data: str, made: str) -> str:
    """Return a page of these sections; `data` is JSON for its script, `made` says by whom."""
    return beside("page.html").format(
        title=escape(title),
        style=style(),
        body=f"{body}\n<footer>{escape(made)}; no GPU was used.</footer>",
        data=data.replace("<", "\\u003c"),  # it cannot end its element
        script=beside("page.js"),
    )


def sections(budget: Budget, plotted: str = "") -> str:
    """Return a page's sections; `plotted` is the timeline of the steps."""
    return "\n".join(_sections(budget, ledger(budget), plotted))


def plot_of(traced: Traced) -> tuple[str, str]:
    """Return the timeline of the steps, and what its script shows of each moment, as JSON."""
    unit = ledger(traced.budget).amounts.unit
    available_bytes = traced.available_bytes if traced.budget.out_of_memory else None
    curve = memory_curve(traced.tape, traced.scenario.job, available_bytes)
    return plot(curve, unit, traced.available_bytes), curve_data(curve, unit)


def style() -> str:
    """Return the page's style sheet."""
    return css([*COLOURS.items(), *OTHERS.items()]) + beside("page.css")


def _sections(budget: Budget, lines: Ledger, plotted: str) -> Iterator[str]:
    word, sentence = verdict(budget, lines)
    kind = "peak" if budget.device is None else "fits" if budget.fits else "fails"
    yield f'<h1 class="{kind}">{word}</h1><p class="verdict">{escape(sentence)}</p>'
    yield f'<p class="job">{escape(job_text(budget))}</p>'
    yield peak_section(*pieces(budget, lines))
    yield f'<section><h2>Along the steps</h2><div class="plotted">{plotted}</div></section>'
    yield f"<section><h2>What takes the memory</h2>{_table(lines)}</section>"
    items = "".join(f"<li>{escape(text)}</li>" for text in (*moments(budget), *notes(budget)))
    yield f'<ul class="notes">{items}</ul>'


def peak_section(found: Sequence[BarPiece], end: float | None) -> str:
    """Return the bar of what is alive at the peak, with its legend."""
    items = "".join(
        f'<li><i style="background:var(--{slug(piece.name)})"></i>{escape(piece.name)}'
        f"<b>{piece.amount}</b></li>"
        for piece in found
    )
    bars = bar(found, end, lambda name: f"var(--{slug(name)})")
    return f'<section><h2>At the peak</h2>{bars}<ul class="legend">{items}</ul></section>'


def _table(lines: Ledger) -> str:
    rows = "".join(
        f"<tr{' class=total' if line.is_total else ''}><th scope=row>{escape(line.name)}</th>"
        f"<td>{lines.amounts.text(line.hundredths)}</td><td>{escape(line.explanation)}</td></tr>"
        for line in lines.lines
    )
    return (
        f"<table><thead><tr><th>at the peak</th><th>{lines.amounts.unit}</th><th>what it is</th>"
        f"</tr></thead><tbody>{rows}</tbody></table>"
    )


def _advice(traced: Traced) -> str:
    from vrambudget.planning.advice import advise_on  # noqa: PLC0415 - most pages have none

    return advice_section(advise_on(traced))


def advice_section(advice: "Advice") -> str:
    """Return the section that says what would help."""
    from vrambudget.report.advice import next_step, options_table  # noqa: PLC0415 - likewise

    head, rows = options_table(advice)
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f"<section><h2>What would help</h2><p>{escape(next_step(advice))}</p>"
        f"<table class=options><thead><tr>{cells('th', head)}</tr></thead>"
        f"<tbody>{body}</tbody></table></section>"
    )


def cells(kind: str, texts: Iterable[str]) -> str:
    """Return a table's cells."""
    return "".join(f"<{kind}>{escape(text)}</{kind}>" for text in texts)


def curve_data(curve: MemoryCurve, unit: str, height: str = "allocated") -> str:
    """Return what the script shows of each moment, as JSON; `height`: what its height is."""
    values = {
        "unit": unit,
        "unitBytes": bytes_in(unit),
        "height": height,
        "parts": list(curve.parts),
        "order": [curve.parts.index(name) for name in stacked(curve.parts)],
        "peak": curve.peak,
        "spans": [(s.step + 1, phase_text(s.phase), s.start, s.stop) for s in curve.spans],
        "groups": [(g.purpose, g.description, g.module, g.size_bytes) for g in curve.groups],
        "columns": [
            (c.operation, c.allocated_bytes, c.reserved_bytes, c.parts, c.largest)
            for c in curve.columns
        ],
    }
    return json.dumps(values, separators=(",", ":"))
