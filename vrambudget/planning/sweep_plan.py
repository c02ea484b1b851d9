"""What a sweep has to compute, and in which order its records come.

    fields of the job, each with one value or many    every combination is a job
    GPUs                                             those with the same kernels share a setting
    batches x blocks                                  the points of every setting

Values are checked here, all of them, before anything is computed.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vrambudget.config.fields.batches import lengths_of
from vrambudget.config.gpus import Gpu, count_of_gpus, find_gpu
from vrambudget.config.job import Job
from vrambudget.config.settings import canonical, show
from vrambudget.config.source import ModelSource
from vrambudget.engine.context import Platform
from vrambudget.errors import VramBudgetError, did_you_mean
from vrambudget.scenario import Scenario, resolve

Gpus = str | Gpu | Iterable[str | Gpu] | None

_ALWAYS = ("mode", "precision", "optimizer", "optimizer_impl", "attention", "checkpointing")
"""Fields of the job that every record has, besides batch, block and what the sweep was given."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything but batch and block; `gpus` share the kernels of the scenario's."""

    scenario: Scenario
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a GPU's numbers are: the setting, and the GPU's place among the setting's."""

    setting: int
    gpu: Gpu | None
    position: int


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What is to be computed, and in which order the records come."""

    settings: tuple[Setting, ...]
    combinations: tuple[tuple[Slot, ...], ...]  # the GPUs, in order, for each combination
    points: tuple[tuple[int, int], ...]  # (batch, block)
    columns: tuple[str, ...]  # fields of the job
    is_of_generations: bool = False  # each setting has its own batch and lengths, and no points


def make_plan(model: ModelSource, gpu: Gpus, fields: Mapping[str, Any]) -> SweepPlan:
    """Return the plan. Raises VramBudgetError for an invalid value."""
    gpu, ranks = _without_numbers(gpu)
    gpus, grid = _gpus(gpu), _many({**ranks, **fields})
    others = {name: values for name, values in grid.items() if name not in {"batch", "block"}}
    first = {name: grid[name][0] for name in ("batch", "block") if name in grid}
    tasks = [
        resolve(model, **first, **dict(zip(others, values, strict=True)))
        for values in itertools.product(*others.values())
    ]
    if any(task.job.mode == "generate" for task in tasks):
        return _plan_of_generations(model, gpus, grid)
    batches, blocks = (
        [_checked(tasks, name, value) for value in grid.get(name, [getattr(tasks[0].job, name)])]
        for name in ("batch", "block")
    )
    settings: list[Setting] = []
    return SweepPlan(
        combinations=tuple(tuple(_slots(scenario, gpus, settings)) for scenario in tasks),
        settings=tuple(settings),
        points=tuple(itertools.product(batches, blocks)),
        columns=tuple(name for name in Job.model_fields if name in {*_ALWAYS, *others}),
    )


def _plan_of_generations(
    model: ModelSource, gpus: tuple[Gpu, ...], grid: Mapping[str, list[Any]]
) -> SweepPlan:
    """Return the plan: a cache that grows is traced for each combination by itself."""
    tasks = [
        resolve(model, **dict(zip(grid, values, strict=True)))
        for values in itertools.product(*grid.values())
    ]
    if any(task.job.mode != "generate" for task in tasks):
        raise VramBudgetError("a sweep is of generations or of other jobs, not of both")
    settings: list[Setting] = []
    shown = {*_ALWAYS, "prompt", "new", *grid} - {"batch", "block", "optimizer"}
    return SweepPlan(
        combinations=tuple(tuple(_slots(scenario, gpus, settings)) for scenario in tasks),
        settings=tuple(settings),
        points=((0, 0),),
        columns=tuple(name for name in Job.model_fields if name in shown),
        is_of_generations=True,
    )


def _many(fields: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return each field's values as a list. Raises VramBudgetError for an unknown field."""
    known = {*Job.model_fields, *Job.aliases}
    for name in fields:
        if name not in known:
            raise VramBudgetError(
                f"a job has no {show(name)}", hint=did_you_mean(name, [*known, "gpu", "by"])
            )
    try:
        grid = canonical({k: _values(k, v) for k, v in fields.items()}, Job.aliases)
    except ValueError as error:
        raise VramBudgetError(str(error)) from None
    for name, values in grid.items():
        if not values:
            raise VramBudgetError(f"{name} has no values")
    if lengths := next(filter(None, map(lengths_of, grid.get("block", ()))), None):
        raise VramBudgetError(
            "a sweep's block is a length, or several to try",
            hint="lengths that change: block={block}, shortest={shortest}".format(**lengths),
        )
    return grid


def _values(name: str, value: Any) -> list[Any]:
    is_one = isinstance(value, str | bytes) or getattr(value, "ndim", 1) == 0
    are_one = name == "lora_targets" and isinstance(value, tuple)
    if is_one or are_one or not isinstance(value, Iterable):
        return [value]
    return list(value)


def _without_numbers(gpu: Gpus) -> tuple[Gpus, dict[str, int]]:
    """Return GPUs, and the ranks that "8xh100" says. Raises VramBudgetError for two numbers."""
    if gpu is None or not isinstance(gpu, str | Gpu | Iterable):
        return gpu, {}  # what it is instead is said by those who look for it
    named = [gpu] if isinstance(gpu, str | Gpu) else [*gpu]
    parsed = [count_of_gpus(one) if isinstance(one, str) else (1, one) for one in named]
    numbers = {number for number, _ in parsed}
    if len(numbers) > 1:
        raise VramBudgetError(
            f"gpu has {' and '.join(map(str, sorted(numbers)))} GPUs in one sweep",
            hint="say the ranks by themselves: --gpu h100 --ranks 2,4,8",
        )
    if numbers <= {1}:
        return gpu, {}
    return [one for _, one in parsed], {"ranks": numbers.pop()}


def _gpus(gpu: Gpus) -> tuple[Gpu, ...]:
    if gpu is None:
        return ()
    if isinstance(gpu, str | Gpu) or not isinstance(gpu, Iterable):
        return (find_gpu(gpu),)
    return tuple(map(find_gpu, gpu))


def _checked(tasks: Sequence[Scenario], name: str, value: Any) -> int:
    """Return a batch or a block that all tasks take."""
    given = {name: getattr(Job.parse({name: value}), name)}
    jobs = [task.job.model_copy(update=given).resolve(task.config) for task in tasks]
    size: int = getattr(jobs[0], name)
    return size


def _slots(scenario: Scenario, gpus: tuple[Gpu, ...], settings: list[Setting]) -> Iterator[Slot]:
    """Yield where each GPU's numbers will be; a setting for each kind of kernels is added."""
    kinds: dict[Platform, list[Gpu]] = {}
    for gpu in gpus:
        kinds.setdefault(replace(scenario, gpu=gpu).platform, []).append(gpu)
    numbers = dict(zip(kinds, itertools.count(len(settings)), strict=False))
    settings.extend(Setting(replace(scenario, gpu=same[0]), tuple(same)) for same in kinds.values())
    for gpu in gpus:
        kind = replace(scenario, gpu=gpu).platform
        yield Slot(numbers[kind], gpu, kinds[kind].index(gpu))
    if not gpus:
        settings.append(Setting(scenario, ()))
        yield Slot(len(settings) - 1, None, 0)
