"""A plan for serving, as people read it: the best way, all ways, and the commands."""

from collections.abc import Sequence
from dataclasses import asdict

from vrambudget.config.gpus import Gpu
from vrambudget.planning.serving import Served
from vrambudget.report.tabular import Column, Format, render_rows
from vrambudget.serving.vllm_versions import USUAL
from vrambudget.units import format_bytes

_SHOWN = 12
_COLUMNS = [
    Column("requests", "requests", "right", lambda n: f"{n:,}"),
    Column("weights", "weights"),
    Column("cache", "cache"),
    Column("engines", "engines", "right"),
    Column("tensor_parallel_size", "tensor", "right"),
    Column("pipeline_parallel_size", "pipeline", "right"),
    Column("weights_bytes", "weights, each GPU", "right", format_bytes),
]


def render_serving_plan(
    rows: Sequence[Served], model: str, gpu: Gpu, gpus: int, output: Format
) -> str:
    """Return the plan as text, or as a table of all rows in another format."""
    if output != "table":
        return render_rows(_COLUMNS, [asdict(row) for row in rows], output)
    many = f"{gpus} x {gpu.name}" if gpus > 1 else gpu.name
    if not rows:
        return (
            f"no way that was tried serves {model} on {many}\n\nnext: more GPUs (--gpu {2 * gpus}x"
            f"{gpu.key or gpu.name}), or a shorter --context"
        )
    best = rows[0]
    shared = best.tensor_parallel_size * best.pipeline_parallel_size
    of_each = f", {best.engines} engines of {shared} GPUs" if best.engines > 1 else ""
    lines = [
        f"MOST REQUESTS: {best.requests:,} of {best.context:,} tokens at once{of_each}",
        "",
        f"{model} on {many}, by the rules of vLLM {USUAL}",
        "",
        render_rows(_COLUMNS, [asdict(row) for row in rows[:_SHOWN]], output),
    ]
    if len(rows) > _SHOWN:
        lines.append(f"and {len(rows) - _SHOWN} ways that hold fewer (--format json has all)")
    plain = next(
        (row for row in rows if row.weights == "as they are" and row.cache == "16 bit"), best
    )
    lines += ["", "the first:", f"  {best.command}"]
    if plain is not best:
        lines += ["with the weights and the cache as they are:", f"  {plain.command}"]
    lines += ["", f"check it by vLLM's own start: {best.rehearsal}"]
    return "\n".join(lines)
