"""Advice as text: what would help, with the peak that it leads to, and the largest tensors.

what would help              GiB  fits  gives up
--batch 8 --grad-accum 8   11.28  yes   speed
"""

from vrambudget.planning.advised import Advice, Option
from vrambudget.planning.changes import Cost
from vrambudget.planning.tensors import HeldTensors
from vrambudget.report.tabular import WIDTH, grid
from vrambudget.units import format_bytes, unit_for

_OPTIONS = 50  # columns


def next_step(advice: Advice) -> str:
    """Return the cheapest change that makes the job fit, in one sentence."""
    if advice.fits is not False:
        return f"{'the job fits; ' if advice.fits else ''}what the GPU holds with one change:"
    enough = [option for option in advice.options if option.fits]
    best = min(enough, key=lambda option: option.cost is Cost.DATA, default=None)
    if best is None:
        nothing = "no change that was tried makes it fit on one such GPU"
        if advice.plan is None:
            return f"{nothing}: use a larger one, or several"
        return f"{nothing}: `{advice.plan}` finds how many it takes"
    alone = " if nothing else uses the GPU" if _verdict(best, advice) == "tight" else ""
    return f"{best.options} makes it fit{alone}: {best.words[-1]}"


def options_table(advice: Advice) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table of what would help."""
    # The unit suits the smallest peak: that of a hopeless job may be TiB.
    peaks = [option.device_peak_bytes for option in advice.options]
    unit = unit_for(min(peaks, default=advice.device_peak_bytes))
    rows = [
        [
            option.options,
            format_bytes(option.device_peak_bytes, unit).removesuffix(f" {unit}"),
            _verdict(option, advice),
            option.cost.value,
        ]
        for option in advice.options
    ]
    return ["what would help", unit, "fits", "gives up"], rows


def render_advice(advice: Advice, *, markdown: bool = False) -> str:
    """Return the advice as text that ends without a newline."""
    head, rows = options_table(advice)
    long = [] if markdown else [row[0] for row in rows if len(row[0]) > _OPTIONS]
    rows = [
        [f"({long.index(row[0]) + 1}) below", *row[1:]] if row[0] in long else row for row in rows
    ]
    table = grid(rows, head, ["left", "right", "left", "left"], markdown=markdown)
    parts = [
        table if rows else "no change that was tried would help",
        *(f"({n}) {text}" for n, text in enumerate(long, 1)),
        "",
        "largest tensors at the peak",
        *map(_tensor, advice.largest),
    ]
    return "\n".join(parts)


def _verdict(option: Option, advice: Advice) -> str:
    """Return whether it fits; tight: only if nothing else uses the GPU, as a report says."""
    if option.fits is None or advice.capacity_bytes is None:
        return "-"
    if option.fits and option.device_peak_bytes + advice.spare_bytes > advice.capacity_bytes:
        return "tight"
    return "yes" if option.fits else "no"


def _tensor(tensor: HeldTensors) -> str:
    line, where = f"  {format_bytes(tensor.bytes):>10}  {tensor}", f", in {tensor.module}"
    return line if len(line) <= WIDTH else line.removesuffix(where) + f"\n{' ' * 14}{where[2:]}"
