"""A rehearsal as one self-contained page: the page of an estimate, of what was seen.

Verdict, what was alive at the peak, the timeline with modules and lines of Python, the largest
blocks, where memory ran out, what to distrust. It needs no network.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from vrambudget import __version__
from vrambudget.escaping import escape
from vrambudget.rehearse.curve import CALLED, OTHER
from vrambudget.rehearse.record import Rehearsal
from vrambudget.rehearse.report import ending_text, frames_text, out_of_memory_text, run_text
from vrambudget.report.amounts import Amounts
from vrambudget.report.bar import BarPiece
from vrambudget.report.colours import COLOURS, OTHERS
from vrambudget.report.html import cells, curve_data, document, peak_section
from vrambudget.report.memory_curve import MemoryCurve, TensorGroup
from vrambudget.report.plot import plot
from vrambudget.units import format_bytes

_HEIGHT = "asked for by tensors"
_FAILS = ("failed", "killed", "unrecorded")


def page(result: Rehearsal) -> str:
    """Return the page."""
    unit = Amounts.for_total(result.capacity_bytes).unit
    body = "\n".join(_sections(result, unit))
    data = curve_data(result.curve, unit, _HEIGHT) if result.curve else "null"
    title = f"{' '.join(result.command)}: {_verdict(result)[1]}"
    return document(title, body, data, f"Rehearsed by vrambudget {__version__}")


def _sections(result: Rehearsal, unit: str) -> Iterator[str]:
    kind, word, sentence = _verdict(result)
    yield f'<h1 class="{kind}">{word}</h1><p class="verdict">{escape(sentence)}</p>'
    yield f'<p class="job">{escape(" ".join(result.command))}</p>'
    yield f'<p class="job">{escape(run_text(result))}; it {escape(ending_text(result))}</p>'
    yield peak_section(*_pieces(result))
    if result.curve is not None:
        yield f"<section><h2>Along the steps</h2>{_along_steps(result)}"
        available_bytes = result.capacity_bytes - result.context_bytes
        yield f"{plot(result.curve, unit, available_bytes)}</section>"
        yield _largest(result.curve)
    yield from (_table("Each GPU", *_gpus(result)) for _ in result.gpus[:1])
    for event in result.out_of_memory:
        lines = "\n".join(frames_text(event))
        yield (
            f"<section><h2>{escape(out_of_memory_text(event))}</h2>"
            f"<pre>{escape(lines)}</pre></section>"
        )
    items = "".join(f"<li>{escape(warning)}</li>" for warning in result.warnings)
    yield f'<ul class="notes">{items}</ul>'


def _verdict(result: Rehearsal) -> tuple[str, str, str]:
    """Return how the heading looks, the word and the sentence."""
    total, capacity = result.device_peak_bytes, result.capacity_bytes
    amounts = Amounts.for_total(capacity)
    needs, has, left = (amounts.text(amounts.of(n)) for n in (total, capacity, capacity - total))
    seen = f"{needs} of {has} {amounts.unit} on {result.gpu}"
    if result.ended == "out of memory":
        last = result.out_of_memory[-1] if result.out_of_memory else None
        asked = f": {out_of_memory_text(last)}" if last else ""
        return "fails", "DOES NOT FIT", f"{seen}{asked}"
    if result.ended in _FAILS:
        why = f": {result.error.splitlines()[0]}" if result.error else ""
        return "fails", result.ended.upper(), f"{seen}{why}"
    return "fits", "FITS", f"{seen}: {left} {amounts.unit} left"


def _pieces(result: Rehearsal) -> tuple[list[BarPiece], float]:
    """Return what the GPU holds at the peak, in stacking order, and where the GPU ends."""
    allocated, reserved = result.peak_allocated_bytes, result.peak_reserved_bytes
    sizes = dict.fromkeys((*COLOURS, *OTHERS), 0)
    for category, size in (result.peak.by_category if result.peak else {}).items():
        sizes[CALLED[category]] += size
    # Where the history lost its beginning, it does not say what the rest is.
    sizes[OTHER] += result.peak_requested_bytes - sum(sizes.values())
    sizes["block rounding"] = allocated - result.peak_requested_bytes
    sizes["cached"] = reserved - allocated
    sizes["CUDA context"] = result.context_bytes
    amounts = Amounts.for_total(result.capacity_bytes)
    total = result.device_peak_bytes
    length = max(total, result.capacity_bytes)
    shown = zip(sizes, amounts.split(list(sizes.values()), amounts.of(total)), strict=True)
    found = [
        BarPiece(name, sizes[name] / length, f"{amounts.text(part)} {amounts.unit}")
        for name, part in shown
        if sizes[name] > 0
    ]
    return found, result.capacity_bytes / length


def _along_steps(result: Rehearsal) -> str:
    """Say what the picture shows, and which steps it leaves out."""
    shown = {span.step + 1 for span in result.curve.spans} if result.curve else set()
    text = "What tensors asked for, and the lines that did."
    some = result.steps > len(shown)
    left = f" Steps {', '.join(map(str, sorted(shown)))} of {result.steps}." if some else ""
    return f'<p class="job">{text}{left}</p>'


def _largest(curve: MemoryCurve) -> str:
    """Return the table of what is largest at the peak, with modules and lines."""
    groups = [(curve.groups[number], n) for number, n in curve.columns[curve.peak].largest]
    rows = [
        (group.purpose, format_bytes(n * group.size_bytes), _where(group, n)) for group, n in groups
    ]
    return _table("Largest at the peak", ("kind", "bytes", "in the module, made at"), rows)


def _where(group: TensorGroup, count: int) -> str:
    times = f"{count} x " if count > 1 else ""
    return (
        f"{times}{group.module}, {group.description}" if group.module else times + group.description
    )


def _gpus(result: Rehearsal) -> tuple[Sequence[str], list[Sequence[str]]]:
    rows: list[Sequence[str]] = [
        (f"cuda:{c.gpu}", *map(format_bytes, (c.reserved_bytes, c.allocated_bytes)))
        for c in result.gpus
    ]
    return ("GPU", "reserved", "allocated"), rows


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(chain.from_iterable(("<tr>", cells("td", row), "</tr>") for row in rows))
    return (
        f"<section><h2>{title}</h2><table><thead><tr>{cells('th', head)}</tr></thead>"
        f"<tbody>{body}</tbody></table></section>"
    )
