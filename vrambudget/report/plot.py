"""The timeline as inline SVG with HTML labels: purposes stacked, one column per moment.

The drawing stretches with the page; its labels do not. They are placed in percent of its width, by
`data-from` and `data-to` in columns, which the page's script also uses to show a single step.
"""

from collections.abc import Iterator, Sequence

from vrambudget.escaping import escape
from vrambudget.report.amounts import HUNDREDTHS
from vrambudget.report.colours import slug, stacked
from vrambudget.report.memory_curve import MemoryCurve, PhaseSpan
from vrambudget.report.phrases import phase_text
from vrambudget.units import bytes_in, format_bytes

_HEIGHT = 4000  # of the drawing, in its own units
_AIR = 1.04  # above the highest line
_GPU_IN_SIGHT = 2  # a GPU larger than this many times the peak would flatten the picture
_TICKS = 6


def plot(curve: MemoryCurve, unit: str, available_bytes: int | None) -> str:
    """Return the figure: zoom buttons, the drawing, its labels, and room for what is pointed at."""
    top = _top(curve, available_bytes)
    count = len(curve.columns)
    labels = "".join(
        (
            *_ticks(top, unit),
            *_phases(curve),
            *_steps(curve),
            *_markers(curve, top, unit, available_bytes),
        )
    )
    return (
        f'<div id="zoom">{_buttons(curve)}<span>dashed: reserved; drag: zoom</span></div>'
        f'<figure id="timeline" data-columns="{count}">'
        f'<svg viewBox="0 0 {count} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(_areas(curve, top))}{_reserved(curve, top)}{_borders(curve)}</svg>"
        f'{labels}<div id="cursor"></div></figure>{_legend(curve, unit)}'
        f'<div id="moment">{_moment(curve, unit)}</div>'
    )


def _legend(curve: MemoryCurve, unit: str) -> str:
    """Return the names of parts that are drawn but too small at the peak for the legend above."""
    peak, least = curve.columns[curve.peak], bytes_in(unit) // HUNDREDTHS
    shown = [
        name
        for n, name in enumerate(curve.parts)
        if peak.parts[n] < least and any(column.parts[n] >= least for column in curve.columns)
    ]
    items = (f'<li><i style="background:var(--{slug(name)})"></i>{name}</li>' for name in shown)
    return f'<ul class="legend">{"".join(items)}</ul>' if shown else ""


def _top(curve: MemoryCurve, available_bytes: int | None) -> float:
    highest = max(column.reserved_bytes for column in curve.columns)
    if available_bytes is not None and available_bytes <= _GPU_IN_SIGHT * highest:
        highest = max(highest, available_bytes)
    return highest * _AIR


def _areas(curve: MemoryCurve, top: float) -> Iterator[str]:
    """Yield one path per part, stacked on the parts before it."""
    below = [0] * len(curve.columns)
    for name in stacked(curve.parts):
        part = curve.parts.index(name)
        above = [low + column.parts[part] for low, column in zip(below, curve.columns, strict=True)]
        if above != below:
            outline = f"{_line(above, top)}L{_line(below, top, back=True)[1:]}Z"
            yield f'<path d="{outline}" fill="var(--{slug(name)})"/>'
        below = above


def _line(values: Sequence[int], top: float, *, back: bool = False) -> str:
    """Return a path of level steps, each one unit wide, without redundant points."""
    heights = [round(_HEIGHT * (1 - value / top)) for value in values]
    corners = []
    for x, y in enumerate(heights):
        if x == 0 or y != heights[x - 1]:
            corners += [(x, heights[x - 1])] if x else []
            corners.append((x, y))
    corners.append((len(heights), heights[-1]))
    return "M" + " ".join(f"{x},{y}" for x, y in (reversed(corners) if back else corners))


def _reserved(curve: MemoryCurve, top: float) -> str:
    line = _line([column.reserved_bytes for column in curve.columns], top)
    return f'<path d="{line}" class="reserved"/>'


def _borders(curve: MemoryCurve) -> str:
    path = "".join(f"M{span.start},0V{_HEIGHT}" for span in curve.spans[1:])
    return f'<path d="{path}" class="border"/>'


def _ticks(top: float, unit: str) -> Iterator[str]:
    size = bytes_in(unit)
    step = _round_step(top / size / _TICKS)
    for i in range(int(top / size / step) + 1):
        text = f"{i * step:g} {unit}" if i else "0"
        yield f'<div class="tick" style="bottom:{i * step * size / top:.2%}">{text}</div>'


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    power = 10.0 ** (len(f"{least:.0f}") - 1) if least >= 1 else 0.1
    return next((k * power for k in (1, 2, 5) if k * power >= least), 10 * power)


def _phases(curve: MemoryCurve) -> Iterator[str]:
    for span in curve.spans:
        text = phase_text(span.phase)
        yield f'<div class="phase" {_place(span.start, span.stop)} title="{text}">{text}</div>'


def _steps(curve: MemoryCurve) -> Iterator[str]:
    for step, start, stop in _step_spans(curve):
        text = f"step {step + 1}"
        yield f'<div class="step" {_place(start, stop)}>{text}</div>'


def _step_spans(curve: MemoryCurve) -> list[tuple[int, int, int]]:
    spans: dict[int, list[PhaseSpan]] = {}
    for span in curve.spans:
        spans.setdefault(span.step, []).append(span)
    return [(step, found[0].start, found[-1].stop) for step, found in spans.items()]


def _markers(curve: MemoryCurve, top: float, unit: str, limit: int | None) -> Iterator[str]:
    peak = curve.columns[curve.peak]
    text = f"peak {format_bytes(peak.allocated_bytes, unit)}"
    yield _marker("peak", curve.peak, peak.allocated_bytes / top, text)
    if limit is not None and limit <= top:
        text = f"available to PyTorch on this GPU: {format_bytes(limit, unit)}"
        yield f'<div class="room" style="bottom:{limit / top:.2%}"><b>{text}</b></div>'
    if curve.out_of_memory is not None and limit is not None:
        yield _marker("full", curve.out_of_memory, limit / top, "out of memory here")


def _marker(kind: str, column: int, height: float, text: str) -> str:
    place = _place(column, column + 1)
    return f'<div class="marker {kind}" {place} data-height="{height:.4f}"><b>{text}</b></div>'


def _place(start: int, stop: int) -> str:
    return f'data-from="{start}" data-to="{stop}"'


def _buttons(curve: MemoryCurve) -> str:
    whole = f'<button {_place(0, len(curve.columns))} aria-pressed="true">all steps</button>'
    return whole + "".join(
        f"<button {_place(start, stop)}>step {step + 1}</button>"
        for step, start, stop in _step_spans(curve)
    )


def _moment(curve: MemoryCurve, unit: str) -> str:
    """Return the moment of the peak, which is shown until the reader points at another."""
    column, span = curve.columns[curve.peak], curve.span_of(curve.peak)
    rows = "".join(
        f"<li>{count} x {escape(group.description)}:"
        f" {format_bytes(count * group.size_bytes, unit)}</li>"
        for group, count in ((curve.groups[g], n) for g, n in column.largest)
    )
    where = f"step {span.step + 1}, {phase_text(span.phase)}, {escape(column.operation)}"
    return f"<p>{where}</p><ul>{rows}</ul>"
