"""How many GPUs a job needs, and how to use them: `plan_gpus("llama-3.1-70b", gpu="h100")`.

The fewest GPUs for which any layout fits, then every layout that fits them, the cheapest first.
Their number is doubled until the most frugal layout fits, then whole machines of eight are tried
between; a layout whose weights, gradients and states alone are too much is not followed at all.

A layout fits if PyTorch runs it on the GPU with NCCL's buffers at their largest beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from vrambudget.config.gpus import Gpu
from vrambudget.config.job import Job
from vrambudget.config.settings import show
from vrambudget.config.source import ModelSource
from vrambudget.engine.context import ModelOptions, recording
from vrambudget.errors import VramBudgetError
from vrambudget.estimator import Scenario, follow, resolve
from vrambudget.parallel.meta import on_meta
from vrambudget.planning.changes import options
from vrambudget.planning.layouts import (
    GOALS,
    MACHINE,
    Goal,
    Layout,
    layouts,
    least_bytes,
    traffic,
)

_MOST_GPUS = 4096
_BFLOAT16_SINCE = (8, 0)


def _say_nothing() -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One layout that fits: what it takes of each GPU, what it costs, and how to ask for it."""

    layout: str
    gpus: int
    peak_bytes: int  # of the fullest rank: reserved bytes and the CUDA context
    left_bytes: int  # beside the peak and NCCL's buffers at their largest
    nccl_bytes: int
    network_bytes: int  # that a rank sends in a step
    host_bytes: int  # in main memory, of each rank
    copied_bytes: int  # between main memory and the GPU, in a step
    recomputes: bool
    trains: str
    command: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The fewest GPUs that do (0: none up to `most`), and the layouts that fit them."""

    model: str
    gpu: str
    gpus: int
    most: int
    choices: tuple[Choice, ...]


def plan_gpus(
    model: ModelSource,
    *,
    gpu: str | Gpu,
    goal: Goal = "full",
    most: int = 1024,
    offload: bool = False,
    **fields: Any,
) -> Plan:
    """Return the fewest GPUs that `model` can be trained on, and how.

    `goal`: what is trained: all weights (full), adapters (lora), adapters of 4-bit weights (qlora),
    or any of them. `offload`: also with shards in main memory. `fields` are those of `Job`; those
    that decide a layout are what is looked for.
    Raises VramBudgetError for a model, a field, a goal or a GPU that makes no sense.
    """
    if goal not in GOALS:
        raise VramBudgetError(f"goal is {show(goal)}; it should be one of {', '.join(GOALS)}")
    if not 1 <= most <= _MOST_GPUS:
        raise VramBudgetError(f"most is {show(most)}; it should be 1 to {_MOST_GPUS} GPUs")
    scenario = resolve(model, gpu=gpu, **fields)
    return plan_for(scenario, goal, most, offload=offload)


def plan_for(
    scenario: Scenario,
    goal: Goal,
    most: int,
    tell: Callable[[], None] = _say_nothing,
    *,
    offload: bool = False,
) -> Plan:
    """Return the plan of a resolved scenario; `tell` is called now and then meanwhile."""
    if scenario.gpu is None:
        raise VramBudgetError("no GPU was named", hint="add --gpu, for example --gpu h100")
    if scenario.job.layout.ranks > 1:
        raise VramBudgetError(
            "a plan looks for the number of GPUs and the layout; they were given",
            hint="leave out ranks and parallel, and name one GPU",
        )
    if scenario.job.mode != "train":
        raise VramBudgetError(f"a plan is for training; mode is {scenario.job.mode!r}")
    planner = _Planner(scenario, goal, offload=offload)
    gpus = _fewest(planner, most, tell)
    choices = planner.choices(gpus) if gpus else []
    return Plan(scenario.model, scenario.gpu.name, gpus, most, tuple(choices))


def _fewest(planner: "_Planner", most: int, tell: Callable[[], None]) -> int:
    """Return the fewest GPUs that do, 0 for none: doubled until they do, then by whole machines."""
    fewer, gpus = 0, 1
    while not planner.can(gpus):
        tell()
        if gpus == most:
            return 0
        fewer, gpus = gpus, min(2 * gpus, most)
    between = range(fewer + MACHINE, gpus, MACHINE) if gpus > 2 * MACHINE else range(0)
    while between:
        tell()
        middle = len(between) // 2
        if planner.can(between[middle]):
            gpus, between = between[middle], between[:middle]
        else:
            between = between[middle + 1 :]
    return gpus


class _Planner:
    def __init__(self, scenario: Scenario, goal: Goal, *, offload: bool) -> None:
        assert scenario.gpu is not None  # noqa: S101 - the caller looked
        self.scenario, self.goal, self.gpu = scenario, goal, scenario.gpu
        self.offload = offload
        self.tried: dict[tuple[str, int], Choice | None] = {}
        self.parameters = _count(scenario)

    def can(self, gpus: int) -> bool:
        """Return whether any layout fits so many GPUs; of several, the most frugal are tried."""
        ways = self._ways(gpus)
        frugal = [layout for layout in ways if layout.is_most_frugal]
        return any(self._choice(layout) is not None for layout in frugal or reversed(ways))

    def choices(self, gpus: int) -> list[Choice]:
        """Return the layouts that fit so many GPUs, the cheapest first."""
        found = (self._choice(layout) for layout in self._ways(gpus))
        return sorted((choice for choice in found if choice is not None), key=_cost)

    def _ways(self, gpus: int) -> list[Layout]:
        has_bfloat16 = self.gpu.compute_capability >= _BFLOAT16_SINCE
        ways = layouts(self.scenario.job, gpus, self.goal, has_bfloat16=has_bfloat16)
        return [way for way in ways if self.offload or not way.fields.get("cpu_offload")]

    def _choice(self, layout: Layout) -> Choice | None:
        """Return a layout that fits, None for one that does not or cannot be: tried once."""
        key = layout.name, layout.gpus
        if key not in self.tried:
            try:
                self.tried[key] = self._tried(layout)
            except VramBudgetError:  # this model or this job cannot be run so
                self.tried[key] = None
        return self.tried[key]

    def _bound(self, layout: Layout) -> int:
        try:
            job = self._job(layout)
        except VramBudgetError:
            return 0
        trainable = self.parameters if job.lora_rank is None else 0
        return least_bytes(job, self.parameters, trainable)

    def _job(self, layout: Layout) -> Job:
        ranks = {"ranks": layout.gpus} if layout.gpus > 1 else {}
        if layout.fields.get("parallel") == "fsdp2":
            ranks["rank"] = 0  # no other has more
        values = self.scenario.job.model_dump() | layout.fields | ranks
        return Job.parse(values).resolve(self.scenario.config.for_job(self.scenario.job))

    def _tried(self, layout: Layout) -> Choice | None:
        """Return a layout that fits, None for one that does not."""
        if self._bound(layout) > self.gpu.room_bytes:
            return None
        job = self._job(layout)
        budget = follow(replace(self.scenario, job=job)).budget
        device, several = budget.device, budget.several
        assert device is not None  # noqa: S101 - a GPU was named
        nccl = several.nccl_bytes[1] if several else 0
        if not device.fits or device.headroom_bytes < nccl:
            return None
        moved = traffic(job, budget.parameters.total, budget.parameters.trainable)
        return Choice(
            layout=layout.name,
            gpus=layout.gpus,
            peak_bytes=device.peak_bytes,
            left_bytes=device.headroom_bytes - nccl,
            nccl_bytes=nccl,
            network_bytes=moved.network_bytes,
            host_bytes=several.host_bytes if several else 0,
            copied_bytes=moved.host_bytes,
            recomputes=job.checkpointing != "none",
            trains=layout.trains,
            command=self._command(job, layout.gpus),
        )

    def _command(self, job: Job, gpus: int) -> str:
        """Return the command that estimates this layout."""
        card = self.gpu.key or f"{self.gpu.capacity_bytes}B"
        bare = Job.parse({})
        told = options(bare, job.model_copy(update=_RESOLVED))
        several = f"{gpus}x" if gpus > 1 else ""
        return f"vrambudget {self.scenario.model} --gpu {several}{card} {told}".rstrip()


_RESOLVED = dict.fromkeys(
    ("attention_mask", "causal_mask", "target_len", "task", "ranks", "rank", "eval_batch")
)
"""What resolving a job, or naming several GPUs, fills in by itself."""


def _cost(choice: Choice) -> tuple[object, ...]:
    """Order by what is given up: what is trained, main memory's copies, traffic, recomputation."""
    order = list(GOALS["any"])
    return (
        order.index(choice.trains),
        choice.copied_bytes,
        choice.recomputes,
        choice.network_bytes,
        "8-bit" in choice.layout,
        choice.peak_bytes,
    )


def _count(scenario: Scenario) -> int:
    """Return a model's parameters, without memory for them."""
    config, task = scenario.config.for_job(scenario.job), scenario.job.task
    assert task is not None  # noqa: S101 - resolved
    with recording(scenario.platform, ModelOptions()), on_meta():
        model = config.build(task)
        return sum(p.numel for p in model.parameters())
