"""What a component is called with: at which sizes, and with which tensors.

A program's sizes are those of its inputs; the pipeline's schedule says what they are at a height, a
width, so many frames and a batch. Guidance may double the batch in a pipeline: a training's call,
and one of a component alone, have the batch that was asked for.
"""

from typing import Any

from vrambudget.dtypes import DType, float32
from vrambudget.errors import NotModelledError
from vrambudget.pictures.job import PictureJob
from vrambudget.pictures.parts import PipelinePart
from vrambudget.program.form import PIECES, Program
from vrambudget.program.guards import holds
from vrambudget.program.values import Values
from vrambudget.training.inputs import Input

Sizes = dict[str, int]


def sizes_of(job: PictureJob, part: PipelinePart, schedule: Program, call: str) -> Sizes:
    """Return the sizes of a component's program in one call with the job's batch.

    Raises NotModelledError for a video of fewer pieces than recur in it.
    """
    found = _of_images(job, part) if call == "encode" else _of_call(job, part, schedule, call)
    pieces = [guard for guard in part.program.guards if guard[4] == PIECES]
    if not all(holds(guard, found) for guard in pieces):
        fewest = 2 * job.card["frames_step"] + 1
        raise NotModelledError(
            f"{job.card['title']}: its {part.name} was recorded at {fewest} frames and more",
            hint=f"--frames {fewest}",
        )
    return found


def _of_call(job: PictureJob, part: PipelinePart, schedule: Program, call: str) -> Sizes:
    own = f"{part.name}.{call}"
    row = next(r for word, r in schedule.built if word == "run" and r[0] == own)
    once, twice = (_at(part, row, {**job.sizes, "batch": batch}) for batch in (1, 2))
    rows = part.program.inputs[0][1][0]
    rows_key = rows[1:] if isinstance(rows, str) else ""  # a schedule of one batch does not say so
    per_batch = once.get(rows_key, 1)
    return {
        key: n * job.batch // per_batch if twice[key] == 2 * n or key == rows_key else n
        for key, n in once.items()
    }


def _at(part: PipelinePart, row: list[Any], sizes: Sizes) -> Sizes:
    """Return a program's sizes by the schedule's row of its call."""
    values, found = Values(sizes, float32, None), Sizes()
    for (_, wanted, *_), (_, shape, _, _) in zip(part.program.inputs, row[1], strict=True):
        for text, size in zip(wanted, values.of(shape), strict=True):
            if isinstance(text, str):
                found.setdefault(text[1:], size)
    numbers = part.program.source["numbers"]
    return {**found, **{symbol: values.of(row[2][n]) for n, symbol in numbers.items()}}


def _of_images(job: PictureJob, part: PipelinePart) -> Sizes:
    """Return the sizes at which a VAE encodes the job's pictures [B, 3, (frames,) H, W]."""
    shape = part.program.inputs[0][1]
    video = len(shape) == 5  # noqa: PLR2004 - dimensions
    own = (job.batch, 3, *((job.frames or 1,) if video else ()), job.height, job.width)
    return {text[1:]: n for text, n in zip(shape, own, strict=True) if isinstance(text, str)}


def inputs_of(part: PipelinePart, sizes: Sizes, dtype: DType) -> dict[str, Input]:
    """Return the tensors of a call."""
    values = Values(sizes, dtype, None)
    return {
        name: Input(tuple(values.of(shape)), values.of(own), keeps_dtype=True)
        for name, shape, own, _ in part.program.inputs
    }


def numbers_of(part: PipelinePart, sizes: Sizes) -> dict[str, int]:
    """Return the whole numbers among a call's arguments."""
    return {name: sizes[symbol] for name, symbol in part.program.source["numbers"].items()}
