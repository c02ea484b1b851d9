"""Advice as text: what would help, with the peak that it leads to, and the largest tensors.

what would help              GiB  fits  costs
--batch 8 --grad-accum 8   11.28  yes   speed
"""

from vrambudget.planning.advice import Advice, Option
from vrambudget.planning.changes import Cost
from vrambudget.planning.tensors import Held
from vrambudget.report.tabular import WIDTH, grid
from vrambudget.units import format_bytes, unit_for


def next_step(advice: Advice) -> str:
    """Return the cheapest change that makes the job fit, in one sentence."""
    enough = [option for option in advice.options if option.fits]
    best = min(enough, key=lambda option: option.cost is Cost.DATA, default=None)
    if best is None:
        return "no known change makes it fit: use a larger GPU"
    return f"{best.options} makes it fit: {best.words[-1]}"


def options_table(advice: Advice) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table of what would help."""
    # The unit suits the smallest peak: that of a hopeless job may be TiB.
    peaks = [option.device_peak_bytes for option in advice.options]
    unit = unit_for(min(peaks, default=advice.device_peak_bytes))
    rows = [
        [
            option.options,
            format_bytes(option.device_peak_bytes, unit).removesuffix(f" {unit}"),
            _verdict(option, advice.capacity_bytes),
            option.cost.value,
        ]
        for option in advice.options
    ]
    return ["what would help", unit, "fits", "costs"], rows


def render_advice(advice: Advice, *, markdown: bool = False) -> str:
    """Return the advice as text that ends without a newline."""
    head, rows = options_table(advice)
    table = grid(rows, head, ["left", "right", "left", "left"], markdown=markdown)
    parts = [
        table if rows else "no known change would help",
        "",
        "largest tensors at the peak",
        *map(_tensor, advice.largest),
    ]
    return "\n".join(parts)


def _verdict(option: Option, capacity_bytes: int | None) -> str:
    """Return whether it fits; barely: PyTorch has to return cached segments, as a report says."""
    if option.fits is None or capacity_bytes is None:
        return "-"
    if option.fits and option.device_peak_bytes > capacity_bytes:
        return "barely"
    return "yes" if option.fits else "no"


def _tensor(tensor: Held) -> str:
    line, where = f"  {format_bytes(tensor.bytes):>10}  {tensor}", f", in {tensor.module}"
    return line if len(line) <= WIDTH else line.removesuffix(where) + f"\n{' ' * 14}{where[2:]}"
