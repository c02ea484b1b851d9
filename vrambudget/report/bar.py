"""The breakdown as one bar, as long as the GPU: parts, what is cached, the CUDA context, the rest.

Plain HTML elements with widths in percent; `colour` says how a part's colour is written, so that a
page can name its own and a notebook, which has no style sheet of ours, can have it spelled out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vrambudget.budget import Budget
from vrambudget.escaping import escape
from vrambudget.report.colours import COLOURS
from vrambudget.report.ledger import Ledger

_NOT_SHOWN = ("capacity", "left")


@dataclass(frozen=True, slots=True)
class BarPiece:
    """One piece of the bar: its share of the bar's length, and its amount as printed."""

    name: str
    share: float
    amount: str


def pieces(budget: Budget, lines: Ledger) -> tuple[list[BarPiece], float | None]:
    """Return the pieces in stacking order, and where on the bar the GPU ends (None: no GPU)."""
    shown = {
        line.name: line
        for line in lines.lines
        if not line.is_total and line.name not in _NOT_SHOWN and line.hundredths > 0
    }
    order = [*COLOURS, *(name for name in shown if name not in COLOURS)]
    total = sum(line.hundredths for line in shown.values())
    capacity = lines.amounts.of(budget.device.capacity_bytes) if budget.device else 0
    length = max(total, capacity, 1)
    unit = lines.amounts.unit
    found = [
        BarPiece(
            name,
            shown[name].hundredths / length,
            f"{lines.amounts.text(shown[name].hundredths)} {unit}",
        )
        for name in order
        if name in shown
    ]
    return found, capacity / length if budget.device else None


def bar(found: Sequence[BarPiece], end: float | None, colour: Callable[[str], str]) -> str:
    """Return the bar of these pieces; a line marks where the GPU ends."""
    inside = "".join(
        f'<div title="{escape(piece.name)}: {piece.amount}" style="width:{piece.share:.3%};'
        f'background:{colour(piece.name)}"></div>'
        for piece in found
    )
    edge = "" if end is None else f'<div class="edge" style="left:{end:.3%}"></div>'
    return (
        f'<div class="bar" role="img" aria-label="what is alive at the peak">{inside}{edge}</div>'
    )
