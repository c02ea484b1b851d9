"""How to train a model on GPUs of a kind: `plan("llama-3.1-8b", gpu="24GB", block=2048)`.

On one GPU the recipes that fit (`planning.recipes`), what gives up least first. Where none does,
what one GPU trains with less (`planning.alternatives`); where there is nothing, or all weights or
those in 4 bits are to be trained, the fewest GPUs for which any layout fits, with every layout that
fits them, the cheapest for each token first (`planning.multi_gpu`). Of
GPUs with a number (gpu="4x24GB", "2x8xh100") every layout that fits them, each with the largest
batch; where none does, what one of them trains, or all with less. A job that is compiled is planned
for one GPU.

A layout that was computed and is too large does not fit. One that has no rule was not considered,
and the plan says so.
"""

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from vrambudget.compiled.asked import refuse
from vrambudget.config.gpus import Gpu, nodes_of_gpus
from vrambudget.config.job import Job
from vrambudget.config.settings import show
from vrambudget.config.source import ModelSource
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.planning.alternatives import Alternative, alternatives, recipes_of
from vrambudget.planning.choices import Choice, of_recipe
from vrambudget.planning.fit import margin_bytes as margin_of
from vrambudget.planning.layouts import GOALS, Goal
from vrambudget.planning.multi_gpu import Planner, fewest
from vrambudget.planning.recipes import Trained
from vrambudget.scenario import Scenario, resolve
from vrambudget.training.inputs import row_text

if TYPE_CHECKING:
    from vrambudget.config.job_fields import RunFields

AS_ASKED = "as asked"
_MOST_GPUS = 4096
_MOST_PER_STEP = 2**16


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be planned, besides the job; `named`: the job's fields that are to stay.

    `per_step`: sequences of one optimizer step, which recipes accumulate to. `suits`: whether a job
    may be a recipe. `autocast`: what is trained under autocast where weights are in 16 bits.
    `gpus`: how many there are, where that was named; `per_node`: those of a machine, likewise.
    """

    goal: Goal = "any"
    most: int = 1024
    offload: bool = False
    named: Collection[str] = ()
    per_step: int | None = None
    margin_bytes: int = 0
    suits: Callable[[Job], bool] = lambda _: True
    autocast: Collection[Trained] = ()
    gpus: int | None = None
    per_node: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The fewest GPUs that do (0: none up to `most`), and the ways that fit them, best first.

    Of a named number of GPUs: all of them, or 0. `not_considered`: layouts that have no rule, with
    the reason. `margin_bytes` of each GPU are left free.
    """

    model: str
    gpu: str
    capacity_bytes: int  # of one GPU
    block: int  # tokens of a sequence
    goal: Goal
    gpus: int
    most: int
    choices: tuple[Choice, ...]
    alternatives: tuple[Alternative, ...] = ()  # where nothing fits as asked: what does with less
    is_named: bool = False  # whether so many GPUs were asked for
    per_node: int | None = None  # GPUs of a machine, where machines were named
    left_out: tuple[str, ...] = ()  # why recipes of a job that is compiled were not tried
    not_considered: tuple[str, ...] = ()
    any_modelled: bool = True  # whether any layout of several GPUs was
    margin_bytes: int = 0
    offload: bool = False  # whether shards in main memory were tried, too
    inputs: str = ""  # a row of what the model reads, if it reads more than text

    def __repr__(self) -> str:
        """Return one line."""
        best = f", the best: {self.choices[0].layout}" if self.choices else ""
        found = f"{len(self.choices)} recipes on {self.gpus} x {self.gpu}"
        return f"<Plan of {self.model}: {found}{best}>"

    def __str__(self) -> str:
        """Return the table that the command line prints."""
        from vrambudget.report.plan import render_plan  # noqa: PLC0415 - reports know plans

        return render_plan(self)

    def _repr_html_(self) -> str:
        from vrambudget.report.plan import plan_html  # noqa: PLC0415 - likewise

        return plan_html(self)

    def records(self) -> list[dict[str, Any]]:
        """Return a flat record for each choice, as pandas and polars accept them; bytes as int."""
        return [
            {
                "model": self.model,
                "gpu": self.gpu,
                **{k: v for k, v in asdict(choice).items() if k not in ("fields", "costs")},
                "costs": ", ".join(choice.costs),
                "batch": choice.fields.get("batch", 1),
                "block": self.block,
            }
            for choice in self.choices
        ]


def plan(
    model: ModelSource,
    *,
    gpu: str | Gpu,
    goal: Goal = "any",
    most: int = 1024,
    offload: bool = False,
    per_step: int | None = None,
    margin: int | str | None = None,
    **fields: "Unpack[RunFields]",
) -> Plan:
    """Return the best recipe for `model` on such a GPU and the next ones, or the fewest GPUs.

    `gpu`: one, or several as "4x24GB". `goal`: what is trained: all weights (full), adapters
    (lora), adapters of 4-bit weights (qlora), or any of them. `per_step`: sequences of one
    optimizer step; without it, and without a batch, recipes have the largest batch that fits.
    `margin`: bytes of one GPU to leave free, or a text as "512MiB"; by default as much as the CUDA
    context may take more than is assumed. `most`: GPUs at most, where `gpu` has no number.
    `offload`: also with shards in main memory. `fields` are those of `Job`, which every recipe
    then has.
    Raises VramBudgetError for a model, a field, a goal or a GPU that makes no sense.
    """
    named = frozenset(Job.aliases.get(name, name) for name in fields)
    gpus, per_node, device = named_gpus(gpu)
    scenario = resolve(model, gpu=device, **fields)
    spare = margin_of(margin, scenario.gpu)
    wish = Wish(goal, most, offload, named, per_step, spare, gpus=gpus, per_node=per_node)
    return plan_for(scenario, wish)


def named_gpus(gpu: str | Gpu) -> tuple[int | None, int | None, str | Gpu]:
    """Return how many GPUs are asked for and how many a machine has (None: not said), and which."""
    nodes, count, device = nodes_of_gpus(gpu) if isinstance(gpu, str) else (1, 1, gpu)
    gpus = nodes * count
    return (gpus if gpus > 1 else None), (count if nodes > 1 else None), device


def plan_for(scenario: Scenario, wish: Wish, progress: Callable[[], object] = lambda: None) -> Plan:
    """Return the plan of a resolved scenario; `progress` is called now and then meanwhile.

    That of a job that is compiled is for one GPU: several are not modelled for it.
    """
    _check(scenario, wish)
    assert scenario.gpu is not None  # noqa: S101 - checked
    others, left_out, planner = tuple[Alternative, ...](), tuple[str, ...](), None
    if scenario.job.compile:
        choices, left_out = _compiled(scenario, wish, progress)
        gpus, wish = len(choices[:1]), replace(wish, most=1)
    else:
        gpus, choices, others, planner = _eager(scenario, wish, progress)
    return Plan(
        model=scenario.model,
        gpu=scenario.gpu.name,
        capacity_bytes=scenario.gpu.capacity_bytes,
        block=scenario.job.block or 1,
        goal=wish.goal,
        gpus=gpus,
        most=wish.gpus or wish.most,
        choices=tuple(choices),
        alternatives=others,
        is_named=wish.gpus is not None,
        per_node=wish.per_node,
        left_out=left_out,
        not_considered=planner.not_considered() if planner else (),
        any_modelled=planner is None or any(planner.modelled_layouts),
        margin_bytes=wish.margin_bytes,
        offload=wish.offload,
        inputs=row_text(scenario.config_of_job, scenario.job),
    )


def _eager(
    scenario: Scenario, wish: Wish, progress: Callable[[], object]
) -> tuple[int, list[Choice], tuple[Alternative, ...], Planner | None]:
    """Return how many GPUs do, what fits them, what one trains with less, and who tried layouts.

    Where one GPU trains with less, several are not looked for, unless all weights are to be trained
    or those in 4 bits.
    """
    alone = recipes_of(scenario, wish, progress) if wish.gpus is None else []
    if alone:
        return 1, [of_recipe(scenario, recipe) for recipe in alone], (), None
    is_one = wish.gpus is None
    others = tuple(alternatives(scenario, wish, progress, alone=True)) if is_one else ()
    if is_one and not others and wish.goal == "lora":
        in_4bit = replace(wish, goal="qlora")
        others = _best_alone(scenario, in_4bit, progress)
        others = others or tuple(alternatives(scenario, in_4bit, progress, alone=True))
    if others and wish.goal in {"any", "lora"}:
        return 0, [], others, None
    planner = Planner(scenario, wish, progress)
    gpus, choices = _together(planner, wish)
    if not choices and not others:
        others = _with_less(scenario, wish, progress)
    return gpus, choices, others, planner


def _with_less(
    scenario: Scenario, wish: Wish, progress: Callable[[], object]
) -> tuple[Alternative, ...]:
    """Return what several GPUs train with less; of a named number, first one as asked."""
    one = replace(wish, gpus=None, per_step=None)
    found = () if wish.gpus is None else _best_alone(scenario, one, progress)
    found = found or tuple(alternatives(scenario, wish, progress, alone=False))
    if found or wish.gpus is None:
        return found
    return tuple(alternatives(scenario, one, progress, alone=True))


def _best_alone(
    scenario: Scenario, wish: Wish, progress: Callable[[], object]
) -> tuple[Alternative, ...]:
    """Return the best recipe for one GPU, if there is one."""
    found = (of_recipe(scenario, recipe) for recipe in recipes_of(scenario, wish, progress)[:1])
    return tuple(Alternative(AS_ASKED, best.command, best) for best in found)


def _compiled(
    scenario: Scenario, wish: Wish, progress: Callable[[], object]
) -> tuple[list[Choice], tuple[str, ...]]:
    """Return what fits one GPU, and why other recipes were not tried.

    Raises VramBudgetError where nothing that was tried compiles.
    """
    refuse(scenario.config, scenario.job)
    if wish.gpus is not None:
        raise NotModelledError(
            f"{wish.gpus} GPUs are not modelled for a compiled model",
            hint="name one GPU, or leave out compile",
        )
    refused, failed = dict[str, None](), list[VramBudgetError]()

    def suits(job: Job) -> bool:
        try:
            refuse(scenario.config, job)
        except NotModelledError as error:
            refused[error.message] = None
            return False
        return wish.suits(job)

    found = recipes_of(scenario, replace(wish, suits=suits), progress, failed.append)
    if failed and not found:
        raise failed[0]
    reasons = dict.fromkeys([*refused, *(error.message for error in failed)])
    if not found:
        reasons["several GPUs: a plan without compile looks for them"] = None
    return [of_recipe(scenario, recipe) for recipe in found], tuple(reasons)


def _together(planner: Planner, wish: Wish) -> tuple[int, list[Choice]]:
    """Return how many GPUs do, and the layouts that fit them."""
    if wish.gpus is None:
        gpus = fewest(planner, wish.most)
        if gpus and wish.per_step is not None:
            raise VramBudgetError(
                f"per_step divides the step of a known number of GPUs: one is too few, {gpus} fit",
                hint=f"count them, for example --gpu {gpus}xh100, or leave per_step out",
            )
        return gpus, planner.choices(gpus) if gpus else []
    if wish.per_step is not None and wish.per_step % wish.gpus:
        raise VramBudgetError(f"per_step is {wish.per_step}, no multiple of {wish.gpus} GPUs")
    choices = planner.largest(wish.gpus)
    return (wish.gpus if choices else 0), choices


def _check(scenario: Scenario, wish: Wish) -> None:
    """Raise VramBudgetError for what no plan is for."""
    if wish.goal not in GOALS:
        raise VramBudgetError(f"goal is {show(wish.goal)}; it should be one of {', '.join(GOALS)}")
    if not 1 <= wish.most <= _MOST_GPUS:
        raise VramBudgetError(f"most is {show(wish.most)}; it should be 1 to {_MOST_GPUS} GPUs")
    if wish.per_step is not None:
        if not 1 <= wish.per_step <= _MOST_PER_STEP:
            raise VramBudgetError(
                f"per_step is {show(wish.per_step)}; it should be 1 to {_MOST_PER_STEP} sequences"
            )
        if {"batch", "grad_accum"} & {*wish.named}:
            raise VramBudgetError(
                "per_step divides a step into batches; batch and grad_accum were given",
                hint="name either the step, or the batch",
            )
    if scenario.gpu is None:
        raise VramBudgetError("no GPU was named", hint="add --gpu, for example --gpu h100")
    if scenario.job.mesh.ranks > 1:
        raise VramBudgetError(
            "a plan looks for the layout; ranks and parallel were given",
            hint="leave them out, and count the GPUs: --gpu 4xh100",
        )
    if scenario.job.mode != "train":
        raise VramBudgetError(f"a plan is for training; mode is {scenario.job.mode!r}")
