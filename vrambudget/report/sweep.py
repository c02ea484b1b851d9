"""A sweep as text and as HTML."""

from collections.abc import Iterator, Sequence

from vrambudget.planning.sweep import Record, Sweep
from vrambudget.report.tabular import Column, Format, html_table, render_rows
from vrambudget.units import format_bytes

_FITS = {True: "yes", False: "no", None: "-"}
_LEFT_OUT = {"capacity_bytes", "headroom_bytes", "peak_step", "peak_phase", "peak_operation"}


def render_sweep(swept: Sweep, output: Format = "table") -> str:
    """Return a sweep as a table or Markdown of what varies, or all of it as CSV or JSON."""
    whole = output in ("json", "csv")
    columns = [Column(key, key) for key in swept[0]] if whole else list(_columns(swept))
    return render_rows(columns, swept, output)


def sweep_html(swept: Sweep) -> str:
    """Return a sweep as an HTML fragment: a table of what varies."""
    return html_table(list(_columns(swept)), swept)


def _columns(records: Sequence[Record]) -> Iterator[Column]:
    """Yield the columns of a table: batch, block, what varies, and the results."""
    first = records[0]
    for key in first:
        if key.startswith("peak_") and key.endswith("_bytes"):
            heading = key.removeprefix("peak_").removesuffix("_bytes")
            yield Column(key, heading, "right", format_bytes)
        elif key == "fits":
            yield Column(key, key, "left", _FITS.__getitem__)
        elif key in {"batch", "block"}:
            yield Column(key, key, "right")
        elif key not in _LEFT_OUT and any(record[key] != first[key] for record in records):
            yield Column(key, key.replace("_", " "))
