"""Advice as text: what would help, with the peak that it leads to, and the largest tensors.

what would help              GiB  fits  costs
--batch 8 --grad-accum 8   11.28  yes   speed
"""

from vrambudget.planning.advice import Advice, Option
from vrambudget.planning.tensors import Held
from vrambudget.report.tabular import grid
from vrambudget.units import format_bytes, unit_for


def next_step(advice: Advice) -> str:
    """Return the cheapest change that makes the job fit, in one sentence."""
    enough = next((option for option in advice.options if option.fits), None)
    if enough is None:
        return "no known change makes it fit: use a larger GPU"
    return f"{enough.options} makes it fit: {enough.words[-1]}"


def render_advice(advice: Advice, *, markdown: bool = False) -> str:
    """Return the advice as text that ends without a newline."""
    # The unit suits the smallest peak: that of a hopeless job may be TiB.
    peaks = [option.device_peak_bytes for option in advice.options]
    unit = unit_for(min(peaks, default=advice.device_peak_bytes))
    rows = [
        [
            option.options,
            format_bytes(option.device_peak_bytes, unit).removesuffix(f" {unit}"),
            _verdict(option),
            option.cost.value,
        ]
        for option in advice.options
    ]
    table = grid(
        rows,
        ["what would help", unit, "fits", "costs"],
        ["left", "right", "left", "left"],
        markdown=markdown,
    )
    parts = [
        table if rows else "no known change would help",
        "",
        "largest tensors at the peak",
        *map(_tensor, advice.largest),
    ]
    return "\n".join(parts)


def _verdict(option: Option) -> str:
    return "-" if option.fits is None else "yes" if option.fits else "no"


def _tensor(tensor: Held) -> str:
    count = f"{tensor.count} x " if tensor.count > 1 else ""
    return f"  {format_bytes(tensor.bytes):>10}  {count}{tensor.description}"
