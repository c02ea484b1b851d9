"""A generation: the pipeline's own call, played for two steps of its scheduler.

All steps of denoising allocate alike. Guidance doubles the batch where the pipeline does so by
itself.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vrambudget.dtypes import float32
from vrambudget.engine.context import (
    ModelOptions,
    Platform,
    context,
    made_for,
    no_grad,
    recording,
)
from vrambudget.engine.identical_layers import stack_layers
from vrambudget.engine.module import register
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.pictures.job import PictureJob
from vrambudget.pictures.parts import PRECISIONS, RECORDED, PipelinePart
from vrambudget.pictures.phases import PhaseMarker, phase_of
from vrambudget.pictures.sizes import inputs_of, numbers_of, sizes_of
from vrambudget.pictures.vae import called, check_in_parts
from vrambudget.program.catalog import program_at
from vrambudget.program.form import TYPES, Program, Row
from vrambudget.program.guards import check_guards
from vrambudget.program.values import Values
from vrambudget.tape.events import Purpose, Storage, Tape
from vrambudget.tape.marks import Phase
from vrambudget.training.inputs import on_device

_LARGE = 2**30  # parameters of a text encoder from which on people put it in 4 bits


class PictureTape(NamedTuple):
    """What a job leaves: its tape, and the weights whose pipeline it is of."""

    tape: Tape
    parameters: int
    trainable: int
    unknown_workspace_bytes: int  # most that a convolution touches whose workspace is not known
    missing: tuple[str, ...] = ()  # what was not recorded, and is not included


def schedule_of(job: PictureJob) -> Program:
    """Return the recorded schedule of a job's pipeline. Raises NotModelledError without one."""
    path = RECORDED / f"{job.name}.{job.precision}.schedule.program"
    known = sorted(RECORDED.glob(f"{job.name}.*.schedule.program"))
    if not path.is_file() and known and (job.train or job.only):
        path = known[0]  # for its sizes alone, which are the same in all precisions
    if not path.is_file():
        names = [found.name.split(".")[-3] for found in known]
        raise NotModelledError(
            f"{job.card['title']} in {job.precision} was not recorded",
            hint=f"--precision {' or '.join(names)}" if names else None,
        )
    return program_at(path)


def generated(job: PictureJob, platform: Platform, *, in_full: bool = False) -> PictureTape:
    """Return what one call of a job's pipeline leaves on the tape. Raises NotModelledError.

    `in_full`: trace every layer, even if they are identical; else CannotRepeatError may say so.
    """
    program = schedule_of(job)
    check_in_parts(job)
    with recording(platform, ModelOptions(dtype=TYPES[PRECISIONS[job.precision]])) as tape:
        if job.only:
            return _alone(job, program, tape, in_full=in_full)
        check_guards(program, job.sizes)
        parts, missing = {}, list[str]()
        for name, call in program.source["components"]:
            single = _rows(program, job, f"{name}.{call}") == 1
            single |= call == "decode" and job.vae_slicing
            try:
                part = parts[name] = _part(job, name, call, single=single)
                if call == "decode":
                    sizes_of(job, part, program, call)  # a video of few frames has none
            except NotModelledError as error:
                if call != "decode":  # what follows needs nothing of it
                    raise
                parts.pop(name, None)
                missing.append(f"{phase_of(name, call)} and the weights of the {name}: {error}")
        for part in parts.values():
            if job.offload == "none" or part.packs:  # others are never there together
                part.arrive()
            register(part.model, tape)
            part.model.eval()
        schedule = PhaseMarker(parts, job.offload)
        schedule.begin()
        _stack(parts, in_full=in_full)
        tape.mark(0, "load", resets_allocator=True)
        with no_grad():
            held = _Playing(program, job, schedule).held
        return _closed(tape, parts, held, missing)


def _alone(job: PictureJob, program: Program, tape: Tape, *, in_full: bool) -> PictureTape:
    """Return what one call of one component leaves, as the pipeline calls it, without guidance."""
    wanted = str(job.only).replace("-", " ")
    calls = [tuple(row[0].split(".")) for word, row in program.built if word == "run"]
    named = [(n, c) for n, c in [*calls, ("vae", "encode")] if phase_of(n, c) == wanted]
    name, call = named[0]
    part = _part(job, name, call, single=job.batch == 1 or (call == "decode" and job.vae_slicing))
    part.arrive()
    register(part.model, tape)
    part.model.eval()
    schedule = PhaseMarker({name: part}, job.offload)
    schedule.begin()
    _stack({name: part}, in_full=in_full)
    sizes = sizes_of(job, part, program, call)
    with made_for(Purpose.INPUTS):
        inputs = [*inputs_of(part, sizes, part.dtype).values()]
        if call == "decode" and job.vae_slicing:  # whose program is of one picture
            inputs = [x._replace(shape=(job.batch, *x.shape[1:])) for x in inputs]
        given = [on_device(x) for x in inputs]
    tape.mark(0, "load", resets_allocator=True)
    with no_grad():
        schedule.before(name, call)
        numbers = numbers_of(part, sizes)
        held = called(job, part, call, given, numbers)
    return _closed(tape, {name: part}, held)


def _stack(parts: Mapping[str, PipelinePart], *, in_full: bool) -> None:
    """Let identical layers be copied, but those whose weights move, or widen, when they begin."""
    for part in parts.values():
        if not in_full and part.model.entered is None:
            stack_layers(part.model)


def _closed(
    tape: Tape, parts: Mapping[str, PipelinePart], _held: object, missing: Sequence[str] = ()
) -> PictureTape:
    """Return a tape that ends here, where all of its pipeline is held."""
    tape.mark(0, Phase.STEP_END)
    tape.close()
    unknown = max(context.unknown_workspaces, default=0)
    count = sum(part.parameters for part in parts.values())
    return PictureTape(tape, count, 0, unknown, tuple(missing))


def _rows(program: Program, job: PictureJob, call: str) -> int:
    """Return how many pictures a component is called with at once: guidance doubles them."""
    row = next(r for word, r in program.built if word == "run" and r[0] == call)
    rows: int = Values(job.sizes, float32, None).of(row[1][0][1][0])
    return rows


def _part(job: PictureJob, name: str, kind: str, *, single: bool) -> PipelinePart:
    """Return a component; in 4 bits, or 8, are the denoiser and text encoders of billions."""
    dtype = TYPES[PRECISIONS[job.precision]]
    base = job.base if name.startswith(("transformer", "unet")) else "bf16"
    part = PipelinePart(job.card, name, kind, dtype, base, single=single)
    if job.swap and name.startswith(("transformer", "unet")):
        part.swap(job.swap)
    if job.base == "nf4" and name.startswith("text_encoder") and part.parameters > _LARGE:
        return PipelinePart(job.card, name, kind, dtype, "nf4", single=single)
    return part


class _Playing:
    """Plays a schedule: what the pipeline's own code makes, and its components' calls."""

    def __init__(self, program: Program, job: PictureJob, schedule: PhaseMarker) -> None:
        self._job, self._schedule = job, schedule
        self._values = Values(job.sizes, TYPES[PRECISIONS[job.precision]], None)
        self.held = defaultdict[int, list[Storage]](list)  # of what is made for each picture: all
        self._play(program.built)

    def _play(self, rows: Sequence[Row]) -> None:
        for word, row in rows:
            if word == "new":
                self._new(row)
            elif word == "free":
                del self.held[row][-1:]
            elif word == "rebind":
                del self.held[row][:-1]
            elif word == "rows":
                self._play(row[1] * self._values.of(row[0]))
            elif word == "cast":
                self._schedule.parts[row[0]].cast(self._values.of(row[1]))
            else:
                self._run(row)

    def _new(self, row: list[Any]) -> None:
        label, shape, dtype, operation = row
        sizes, own = tuple(self._values.of(shape)), self._values.of(dtype)
        nbytes = own.itemsize
        for size in sizes:
            nbytes *= size
        purpose = Purpose.TEMPORARIES
        self.held[label].append(Storage(context.tape, nbytes, purpose, operation, (sizes, own)))

    def _run(self, row: list[Any]) -> None:
        own, given, numbers, outs = row
        name, _, call = own.partition(".")
        if name not in self._schedule.parts:
            return
        self._schedule.before(name, call)
        part = self._schedule.parts[name]
        inputs = [self._given(x) for x in given]
        sizes = {key: self._values.of(n) for key, n in numbers.items()}
        results = called(self._job, part, call, inputs, sizes)
        if part.model.entered is not None:
            part.model.entered("")
        for label, y in zip(outs, results, strict=True):
            if label is not None:
                self.held[label].append(y.storage)

    def _given(self, given: list[Any]) -> Tensor:
        label, shape, dtype, strides = given
        sizes, own = tuple(self._values.of(shape)), self._values.of(dtype)
        lies = None if strides is None else tuple(self._values.of(strides))
        if label is None:  # a number on the host
            return Tensor(sizes, own, Storage(context.tape, 0, Purpose.INPUTS, "host"), lies)
        return Tensor(sizes, own, self.held[label][-1], lies)
