"""A server's start as people read it: the verdict, its figures, its peak, its own lines."""

from collections.abc import Iterator

from vrambudget.rehearse.record import Moment, Rehearsal
from vrambudget.rehearse.report import moment_lines, run_text
from vrambudget.rehearse.servers.start import ServerStart
from vrambudget.report.tabular import grid
from vrambudget.units import format_bytes

_ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}


def server_lines(result: Rehearsal, start: ServerStart) -> Iterator[str]:
    """Yield the report's lines, the verdict first."""
    yield verdict(result, start)
    yield run_text(result)
    if result.python:
        yield f"by {result.python}"
    yield ""
    if start.error and not start.ready:
        yield f"its error: {start.error}"
        yield from (f"  try {change}" for change in start.changes)
        yield ""
    if rows := list(_rows(start)):
        yield grid(rows)
    if start.peak is not None:
        yield from _peak(start.peak)
    if start.lines:
        yield ""
        yield "its own lines:"
        yield from (f"  {line}" for line in start.lines)
    yield ""
    yield from (f"note: {note}" for note in start.notes)


def verdict(result: Rehearsal, start: ServerStart) -> str:
    """Return whether it starts: "STARTS: vLLM 0.19.0 holds 418,688 tokens of keys and values"."""
    engine = f"{_ENGINES[start.engine]} {start.version or ''}".strip()
    if start.ready:
        holds = "" if start.tokens is None else f" with {start.tokens:,} tokens of keys and values"
        return f"STARTS: {engine} is ready{holds}"
    if result.ended in ("timeout", "interrupt"):
        how = "the time limit" if result.ended == "timeout" else "the interrupt"
        return f"NOT KNOWN: {engine} was not ready at {how} ({result.seconds:.0f} s)"
    held = "" if start.tokens is None else f", once its cache of {start.tokens:,} tokens was there"
    return f"DOES NOT START: {engine} ended with exit code {result.exit_code}{held}"


def _rows(start: ServerStart) -> Iterator[tuple[str, str]]:
    sizes = (
        ("weights", start.weights_bytes),
        ("activations of the profiled step", start.activations_bytes),
        ("outside PyTorch in that step", start.outside_bytes),
        ("KV cache", start.cache_bytes),
        ("CUDA graphs", start.graphs_bytes),
        ("left on the GPU", start.free_bytes),
    )
    each = " (each GPU)" if start.gpus > 1 else ""
    for name, size in sizes:
        if size is not None:
            yield f"{name}{each}", format_bytes(size, "GiB")
    if start.tokens is not None:
        yield "tokens of the KV cache", f"{start.tokens:,}"
    if start.concurrency is not None:
        yield f"requests of {start.max_model_len:,} tokens", f"{start.concurrency:.2f}"


def _peak(peak: Moment) -> Iterator[str]:
    yield ""
    phase = "profiled step" if peak.phase == "profiled step" else "loading of weights"
    yield f"peak of start-up before the KV cache, in the {phase}: {peak.line}"
    yield from moment_lines(peak, empty=False)
