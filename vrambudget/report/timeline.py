"""The memory timeline as a PNG, SVG or PDF file, with matplotlib, an extra."""

import io
from importlib import import_module
from typing import Any, Literal

from vrambudget.errors import VramBudgetError
from vrambudget.estimator import Traced
from vrambudget.report.colours import COLOURS
from vrambudget.report.ledger import ledger
from vrambudget.report.memory_curve import PARTS, MemoryCurve, memory_curve
from vrambudget.report.phrases import job_text, phase_text, verdict
from vrambudget.units import bytes_in, format_bytes

Kind = Literal["png", "svg", "pdf"]

_INCHES = (11.0, 5.2)
_DOTS_PER_INCH = 150
_GPU_IN_SIGHT = 1.4  # a GPU larger than this many times the peak would flatten the picture
_AIR = 1.06  # above the highest line
_INK, _QUIET, _BAD = "#1c2128", "#5a6472", "#b3261e"
_WIDE = 0.055  # share of the width that a phase needs for its name


def timeline(traced: Traced, kind: Kind) -> bytes:
    """Return the picture. Raises VramBudgetError if matplotlib is missing."""
    budget = traced.budget
    lines = ledger(budget)
    available_bytes = traced.available_bytes if budget.out_of_memory else None
    curve = memory_curve(traced.tape, traced.scenario.job, available_bytes)
    figure = _figure()
    axes = figure.subplots()
    _stack(axes, curve, bytes_in(lines.amounts.unit))
    axes.set_ylabel(lines.amounts.unit)
    axes.spines[["top", "right"]].set_visible(b=False)
    _name_phases(axes, curve)
    _mark_peak(axes, curve, lines.amounts.unit)
    _mark_gpu(axes, curve, traced.available_bytes, lines.amounts.unit)
    _legend(axes)
    word, sentence = verdict(budget, lines)
    axes.set_title(f"{word}: {sentence}", loc="left", fontsize=12, fontweight="bold", pad=20)
    axes.text(0, 1.015, job_text(budget), transform=axes.transAxes, fontsize=7.5, color=_QUIET)
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=_DOTS_PER_INCH, metadata=_UNDATED[kind])
    return out.getvalue()


_UNDATED: dict[Kind, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def _figure() -> Any:
    try:
        figure = import_module("matplotlib.figure")
    except ImportError:
        raise VramBudgetError(
            "a timeline as PNG, SVG or PDF needs matplotlib, which is not installed",
            hint="pip install 'vrambudget[pictures]', or use -o report.html, which needs nothing",
        ) from None
    return figure.Figure(figsize=_INCHES, layout="constrained")


def _stack(axes: Any, curve: MemoryCurve, unit_bytes: int) -> None:
    count = len(curve.columns)
    last = curve.columns[-1]
    columns = [*curve.columns, last]  # where the last column ends
    names = [name for name in COLOURS if any(c.parts[PARTS.index(name)] for c in curve.columns)]
    axes.stackplot(
        range(count + 1),
        [[c.parts[PARTS.index(name)] / unit_bytes for c in columns] for name in names],
        colors=[COLOURS[name].light for name in names],
        labels=names,
        step="post",
        linewidth=0,
    )
    reserved = [column.reserved_bytes / unit_bytes for column in columns]
    axes.step(
        range(count + 1),
        reserved,
        where="post",
        color=_INK,
        lw=0.9,
        ls="--",
        alpha=0.7,
        label="reserved",
    )
    axes.set_xlim(0, count)
    axes.set_ylim(0, _AIR * max(reserved))


def _name_phases(axes: Any, curve: MemoryCurve) -> None:
    wide = [s for s in curve.spans if s.stop - s.start >= _WIDE * len(curve.columns)]
    middles = [(span.start + span.stop) / 2 for span in wide]
    names = [f"{phase_text(span.phase)}\nstep {span.step + 1}" for span in wide]
    axes.set_xticks(middles, names, fontsize=7.5)
    axes.tick_params(axis="x", length=0)
    for span in curve.spans[1:]:
        axes.axvline(span.start, color=_QUIET, lw=0.6, alpha=0.35)


def _mark_peak(axes: Any, curve: MemoryCurve, unit: str) -> None:
    peak = curve.columns[curve.peak].allocated_bytes
    text = f"peak {format_bytes(peak, unit)}"
    _point(axes, curve.peak, peak / bytes_in(unit), _INK, text)


def _mark_gpu(axes: Any, curve: MemoryCurve, available_bytes: int | None, unit: str) -> None:
    """Draw what the GPU has for PyTorch, if that is in range, and where it is full."""
    highest = curve.columns[-1].reserved_bytes
    if available_bytes is None or available_bytes > _GPU_IN_SIGHT * highest:
        return
    available = available_bytes / bytes_in(unit)
    axes.axhline(available, color=_BAD, lw=1.4, label="available on the GPU")
    axes.set_ylim(0, max(axes.get_ylim()[1], _AIR * available))
    if curve.out_of_memory is not None:
        _point(axes, curve.out_of_memory, available, _BAD, "out of memory here")


def _legend(axes: Any) -> None:
    handles, names = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        names[::-1],
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        fontsize=8,
        frameon=False,
    )


def _point(axes: Any, column: int, height: float, colour: str, text: str) -> None:
    axes.plot([column + 0.5], [height], "o", color=colour, ms=4.5, mec="white", mew=1)
    axes.annotate(
        text,
        (column + 0.5, height),
        (0, 6),
        textcoords="offset points",
        ha="center",
        fontsize=8.5,
        fontweight="bold",
        color=colour,
    )
