"""What a model takes at many settings: every combination of the given values.

    sweep("gpt2", batch=[1, 2, 4], precision=["fp32", "amp-bf16"], gpu=["RTX 3060", "RTX 4090"])

returns a list of records (dicts of plain values with the same keys), which pandas, polars and
pyarrow accept; printed, or shown in a notebook, it is a table. Shared work is done once: GPUs with
the same kernels share a tape, and points (batch, block) for which a model's rules decide alike
share a run of the model.

    by="replay"      requested, allocated and reserved peaks of each point and whether it fits on
                     each GPU, as `estimate` says
    by="requested"   the peak of requested bytes alone, without a replay of the allocator: for grids
                     of many thousand points. A point whose requests alone exceed a GPU does not
                     fit there; for the others `fits` is None

    executor         any concurrent.futures.Executor spreads the work, for example over a cluster:
                     Dask's `client.get_executor()`, mpi4py's `MPIPoolExecutor()`. Its workers need
                     this package. Without one, processes of this machine do it

NumPy makes it faster, and is needed for requested bytes alone.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from vrambudget.config.gpus import Gpu
from vrambudget.config.settings import show
from vrambudget.config.source import ModelSource
from vrambudget.errors import VramBudgetError
from vrambudget.planning.processes import progress, side_by_side
from vrambudget.planning.sweep_plan import Gpus, Slot, SweepPlan, make_plan

if TYPE_CHECKING:
    from vrambudget.config.sweep_fields import SweepFields

By = Literal["replay", "requested"]
Record = dict[str, Any]


class Sweep(list[Record]):
    """A record for every combination: `pandas.DataFrame(swept)`, `polars.DataFrame(swept)`."""

    def __str__(self) -> str:
        """Return the table that the command line prints."""
        from vrambudget.report.sweep import render_sweep  # noqa: PLC0415 - reports know sweeps

        return render_sweep(self)

    def _repr_html_(self) -> str:
        from vrambudget.report.sweep import sweep_html  # noqa: PLC0415 - likewise

        return sweep_html(self)


def sweep(
    model: ModelSource,
    *,
    gpu: Gpus = None,
    by: By = "replay",
    executor: Executor | None = None,
    **fields: "Unpack[SweepFields]",
) -> Sweep:
    """Return a record for every combination; a field of `Job` may have one value or many.

    The order is that of nested loops: fields of the job, then batch, block and GPU. Raises
    VramBudgetError for a value that makes no sense.
    """
    if by not in get_args(By):
        raise VramBudgetError(f"by is {show(by)}", hint="use 'replay' or 'requested'")
    plan = make_plan(model, gpu, fields)
    return Sweep(_records(plan, by, _results(plan, by, executor)))


def _results(plan: SweepPlan, by: By, executor: Executor | None) -> list[list[Any]]:
    """Return what each point comes to in each setting: an Outcome, or requested bytes."""
    found: list[list[Any]] = [[None] * len(plan.points) for _ in plan.settings]
    pieces, function = _work(plan, by, elsewhere=executor is not None)
    with progress(len(found) * len(plan.points), "points") as done:
        for portion, results in side_by_side(function, pieces, executor):
            for index, result in zip(map(int, portion.indices), results, strict=True):
                found[portion.number][index] = result
            done(len(portion.indices))
    return found


def _work(
    plan: SweepPlan, by: By, *, elsewhere: bool
) -> tuple[list[Any], Callable[[Any], list[Any]]]:
    """Return the portions of the work, and what is done with each: without NumPy point by point."""
    numbered = list(enumerate(plan.settings))
    if plan.is_of_generations:
        from vrambudget.planning import sweep_alone as alone  # noqa: PLC0415 - few sweeps are

        own = [alone.generation(number, setting) for number, setting in numbered]
        return own, alone.replayed if by == "replay" else alone.requested
    jobs = [setting.scenario.job for setting in plan.settings]
    if any(job.shortest is not None or job.compile for job in jobs):
        return _point_by_point(plan, by)
    try:
        from vrambudget.planning import sweep_points as work  # noqa: PLC0415 - NumPy
    except ImportError as error:
        if by == "requested":
            raise VramBudgetError(
                "a sweep by requested bytes needs NumPy",
                hint="pip install 'vrambudget[sweep]', or leave by='requested' (--by) out",
            ) from error
        return _point_by_point(plan, by)
    return [
        portion
        for number, setting in numbered
        for portion in work.portions(
            number, setting, plan.points, replays=by == "replay", elsewhere=elsewhere
        )
    ], (work.replayed if by == "replay" else work.requested)


def _point_by_point(plan: SweepPlan, by: By) -> tuple[list[Any], Callable[[Any], list[Any]]]:
    """Return the work where points share no tape: without NumPy, compiled, of changing lengths."""
    from vrambudget.planning import sweep_alone as alone  # noqa: PLC0415 - few sweeps need it

    return [
        portion
        for number, setting in enumerate(plan.settings)
        for portion in alone.portions(number, setting, plan.points)
    ], (alone.replayed if by == "replay" else alone.requested)


def _records(plan: SweepPlan, by: By, found: list[list[Any]]) -> Iterator[Record]:
    measures = _replayed if by == "replay" else _requested
    for slots in plan.combinations:
        task = plan.settings[slots[0].setting].scenario
        settings = {name: _plain(getattr(task.job, name)) for name in plan.columns}
        columns = [(_of_gpu(slot.gpu), slot, found[slot.setting]) for slot in slots]
        own = (task.job.batch, task.job.block)
        for index, (batch, block) in enumerate([own] if plan.is_of_generations else plan.points):
            point = {"model": task.model, "batch": batch, "block": block, **settings}
            for gpu, slot, results in columns:
                yield {**point, **gpu, **measures(slot, results[index])}


def _plain(value: Any) -> Any:
    return ",".join(value) if isinstance(value, tuple) else value


def _of_gpu(gpu: Gpu | None) -> Record:
    return {
        "gpu": gpu.name if gpu else None,
        "capacity_bytes": gpu.capacity_bytes if gpu else None,
    }


def _requested(slot: Slot, requested_bytes: int) -> Record:
    cannot = slot.gpu is not None and requested_bytes > slot.gpu.available_bytes
    return {"peak_requested_bytes": requested_bytes, "fits": False if cannot else None}


def _replayed(slot: Slot, outcome: Any) -> Record:
    peak, gpu = outcome.peak, slot.gpu
    return {
        "peak_requested_bytes": peak.requested_bytes,
        "peak_allocated_bytes": peak.allocated_bytes,
        "peak_reserved_bytes": peak.reserved_bytes,
        "peak_step": peak.step,
        "peak_phase": peak.phase,
        "peak_operation": peak.operation,
        "headroom_bytes": gpu.available_bytes - peak.reserved_bytes if gpu else None,
        "fits": outcome.fits[slot.position] if gpu else None,
    }
