"""A rehearsal as people read it: verdict, peak and its parts, what failed, what to distrust."""

import re
from collections.abc import Iterator

from vrambudget.rehearse.record import Category, Moment, RecordedOutOfMemory, Rehearsal
from vrambudget.report.tabular import grid
from vrambudget.units import format_bytes

_STEPS_SHOWN = 3
_FRAMES_SHOWN = 5

_PLURALS = re.compile("step|turn|pass")
_SMALLER: dict[Category, str] = {
    "parameter": "LoRA trains few of the weights, QLoRA keeps the others in 4 bits",
    "gradient": "LoRA trains few of the weights: the others have no gradients",
    "optimizer_state": "bitsandbytes' AdamW8bit keeps its states in 8 bits",
    "activation": "model.gradient_checkpointing_enable() keeps a layer's inputs alone",
}
"""What makes less of what most memory goes to."""
_FUSED = "the optimizer's fused=True makes no temporaries of the size of all gradients"
_ENDINGS = {
    "finished": "ran to its end",
    "steps": "ran as many steps as asked",
    "timeout": "ran until the time limit",
    "interrupt": "was interrupted",
    "out of memory": "RAN OUT OF MEMORY",
    "failed": "failed for a reason of its own",
    "killed": "was killed",
    "unrecorded": "ran, but nothing could be seen",
    "ready": "started, and was ended then",
}


def render(result: Rehearsal) -> str:
    """Return the report as text."""
    if result.server is not None:
        from vrambudget.rehearse.servers.report import server_lines  # noqa: PLC0415 - it needs ours

        return "\n".join(server_lines(result, result.server))
    return "\n".join(_lines(result))


def _lines(result: Rehearsal) -> Iterator[str]:
    yield run_text(result)
    if result.python:
        yield f"by {result.python}"
    yield f"it {ending_text(result)}"
    if result.ended in ("failed", "killed", "timeout", "unrecorded") and result.error:
        yield f"  {result.error.splitlines()[0]}"
    yield ""
    seen = result.versions or result.peak_reserved_bytes
    yield _totals(result) if seen else "nothing of the GPU was seen: no memory is reported"
    if result.gpus:
        yield from _gpus(result)
    if result.peak:
        yield from _moment(result.peak)
    if result.phases:
        yield from _phases(result)
    for event in result.out_of_memory:
        yield from _out_of_memory(event)
    for warning in result.warnings:
        yield f"warning: {warning}"
    if result.ended == "out of memory" and result.server is None:
        yield from _next(result)


def run_text(result: Rehearsal) -> str:
    """Return on what it ran."""
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    capacity = format_bytes(result.capacity_bytes, "GiB")
    return f"rehearsed on a virtual GPU: {result.gpu} ({capacity}); {versions}"


def ending_text(result: Rehearsal) -> str:
    """Return how it ended: "ran to its end: 3 optimizer steps, 10.2 s, exit code 0"."""
    unit = result.step_unit
    steps = f"{result.steps} {unit if result.steps == 1 else _PLURALS.sub(_plural, unit)}"
    ending = f"{_ENDINGS[result.ended]}: {steps}"
    return f"{ending}, {result.seconds:.1f} s, exit code {result.exit_code}"


def _plural(word: re.Match[str]) -> str:
    return word[0] + ("es" if word[0].endswith("s") else "s")


def _totals(result: Rehearsal) -> str:
    rows = [
        ("asked for by tensors", result.peak_requested_bytes),
        ("allocated (rounded to blocks)", result.peak_allocated_bytes),
        ("reserved (segments taken from the driver)", result.peak_reserved_bytes),
        ("CUDA context", result.context_bytes),
        ("the GPU must hold", result.device_peak_bytes),
    ]
    return grid([(name, format_bytes(n), f"{n:,}") for name, n in rows], ("peak", "", "bytes"))


def _gpus(result: Rehearsal) -> Iterator[str]:
    """Yield each GPU's peaks; what follows is of the fullest."""
    yield ""
    rows = [
        (
            f"cuda:{gpu.gpu}",
            *map(format_bytes, (gpu.requested_bytes, gpu.allocated_bytes, gpu.reserved_bytes)),
        )
        for gpu in result.gpus
    ]
    yield grid(rows, ("peaks of each GPU", "asked for", "allocated", "reserved"))


def _moment(peak: Moment) -> Iterator[str]:
    yield ""
    yield f"alive at the peak: step {peak.step}, {peak.phase}, {peak.line}"
    yield from moment_lines(peak)


def moment_lines(peak: Moment, *, empty: bool = True) -> Iterator[str]:
    """Yield tables of what was alive at a moment, by category and the largest."""
    rows = [(c, format_bytes(n), f"{n:,}") for c, n in peak.by_category.items() if n or empty]
    total = peak.requested_bytes
    yield grid([*rows, ("together", format_bytes(total), f"{total:,}")], ("", "", "bytes"))
    yield ""
    largest = [
        (format_bytes(b.requested_bytes), str(b.count), b.category, b.line) for b in peak.largest
    ]
    sides = ("right", "right", "left", "left")
    yield grid(largest, ("largest", "blocks", "kind", "made at"), sides)


def _phases(result: Rehearsal) -> Iterator[str]:
    yield ""
    steps = sorted({p.step for p in result.phases})[:_STEPS_SHOWN]
    names = list(dict.fromkeys(p.phase for p in result.phases))
    peaks = {(p.step, p.phase): p.requested_bytes for p in result.phases}
    rows = [
        (
            f"step {step}",
            *(format_bytes(peaks[step, n]) if (step, n) in peaks else "-" for n in names),
        )
        for step in steps
    ]
    yield grid(rows, ("asked for, at most", *names))


def _out_of_memory(event: RecordedOutOfMemory) -> Iterator[str]:
    yield ""
    yield out_of_memory_text(event)
    sizes = event.allocated_bytes, event.reserved_bytes, event.free_bytes
    allocated, reserved, free = map(format_bytes, sizes)
    yield f"  with {allocated} allocated, {reserved} reserved and {free} free on the GPU"
    yield from (f"  {line}" for line in frames_text(event))


def _next(result: Rehearsal) -> Iterator[str]:
    """Yield what to try: a smaller batch, less of what is largest, a plan of a known model."""
    yield ""
    yield "next: `--batch-from 1:64` finds the largest batch: {batch} in the command is its place"
    if result.peak is not None:
        parts = result.peak.by_category
        largest = max(parts, key=lambda category: parts[category])
        if largest == "temporary" and result.peak.phase == "optimizer_step":
            yield f"      {_FUSED}"
        elif largest in _SMALLER:
            yield f"      {_SMALLER[largest]}"
    yield "      `vrambudget plan MODEL --gpu GPU` looks for what fits, for a model that it knows"


def out_of_memory_text(event: RecordedOutOfMemory) -> str:
    """Return when memory ran out, and on what."""
    handled = ", which the script handled" if event.handled else ""
    asked = format_bytes(event.requested_bytes)
    return f"out of memory in step {event.step}{handled}: asked for {asked}"


def frames_text(event: RecordedOutOfMemory) -> Iterator[str]:
    """Yield the script's own lines that asked for it, outermost first."""
    for frame in event.stack[-_FRAMES_SHOWN:]:
        place, _, text = frame.partition("  ")
        file, _, rest = place.rpartition("/")
        yield f"{rest if file else place}  {text}".rstrip()
