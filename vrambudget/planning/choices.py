"""One way to train that fits: what it takes of each GPU, what it costs, and how to ask for it."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vrambudget.config.cards import card_names, load_card
from vrambudget.config.job import Job
from vrambudget.config.options import option_words
from vrambudget.config.said_by_config import caches
from vrambudget.scenario import Scenario

if TYPE_CHECKING:
    from vrambudget.planning.recipes import Recipe, Trained

_RESOLVED = ("attention_mask", "causal_mask", "target_len", "task", "eval_batch")
"""What resolving a job fills in where nothing is said."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way that fits: what it takes of each GPU, what it costs, and how to ask for it."""

    layout: str
    gpus: int
    trains: str
    costs: tuple[str, ...]
    peak_bytes: int  # of the fullest rank: reserved bytes and the CUDA context
    left_bytes: int  # beside the peak and NCCL's buffers at their largest
    nccl_bytes: int
    global_batch: int  # sequences of one optimizer step, of all ranks
    network_bytes: int  # that a rank sends in a step
    sent_per_sequence_bytes: int  # of them, for each of those sequences
    host_bytes: int  # in main memory, of each rank
    copied_bytes: int  # between main memory and the GPU, in a step
    recomputes: bool
    fields: dict[str, Any]  # of the job, as `estimate` takes them
    command: str


def words_of(job: Job, trains: "Trained") -> str:
    """Return a recipe in few words."""
    words: list[str] = [trains, job.optimizer, job.precision]
    words += ["checkpointing"] if job.checkpointing != "none" else []
    words += ["expandable segments"] if job.expandable_segments else []
    return ", ".join(words)


def of_recipe(scenario: Scenario, recipe: "Recipe") -> Choice:
    """Return a recipe for the scenario's GPU as a choice."""
    assert scenario.gpu is not None  # noqa: S101 - a recipe is for one
    job = recipe.job
    return Choice(
        layout=words_of(job, recipe.trains),
        gpus=1,
        trains=recipe.trains,
        costs=recipe.costs,
        peak_bytes=recipe.peak_bytes,
        left_bytes=scenario.gpu.capacity_bytes - recipe.peak_bytes,
        nccl_bytes=0,
        global_batch=job.batch * job.grad_accum,
        network_bytes=0,
        sent_per_sequence_bytes=0,
        host_bytes=0,
        copied_bytes=0,
        recomputes=job.checkpointing != "none",
        fields=fields_of(scenario, job),
        command=command(scenario, job, 1),
    )


def fields_of(scenario: Scenario, job: Job) -> dict[str, Any]:
    """Return the fields that lead to this job from the model's name alone."""
    bare, now = Job.parse({}), scenario.job
    needless = {"ranks", "rank", *unsaid(scenario, job)}  # naming several GPUs says how many
    return {
        name: value
        for name in Job.model_fields
        if name not in needless
        and ((value := getattr(job, name)) != getattr(bare, name) or value != getattr(now, name))
    }


def unsaid(scenario: Scenario, job: Job) -> set[str]:
    """Return the fields that this job has as they are where nothing is said of them."""
    of_loop = {"loop": job.loop, "mode": job.mode, "compile": job.compile}
    cached = scenario.config.keeps_cache and caches(scenario.values, of_loop)
    default = job.model_copy(update=dict.fromkeys(_RESOLVED)).resolve(scenario.config.for_job(job))
    names = {name for name in _RESOLVED if getattr(default, name) == getattr(job, name)}
    return names | ({"use_cache"} if job.use_cache == cached else set())


def changed_options(scenario: Scenario, job: Job) -> str:
    """Return what to add to the scenario's command line to get to this job."""
    now = scenario.job
    needless = unsaid(scenario, now) & unsaid(scenario, job)
    if now.mode == "generate":
        needless.add("block")  # it is the prompt's
    fields = {
        name: value
        for name in Job.model_fields
        if name not in needless and (value := getattr(job, name)) != getattr(now, name)
    }
    if "block" in fields and job.shortest is not None:
        fields["block"] = f"{job.shortest}:{job.block}"
    return shlex.join(option_words(fields))


def model_word(scenario: Scenario) -> str:
    """Return what names a model on the command line; a dict would have to lie in a file first."""
    name = scenario.model
    if scenario.path is not None:
        return scenario.path
    if name != scenario.values.get("model_type"):
        return name
    is_card = name in card_names() and load_card(name).config == scenario.values
    return name if is_card else "config.json"


def gpu_word(scenario: Scenario) -> str:
    """Return what names its GPU on the command line."""
    assert scenario.gpu is not None  # noqa: S101 - a plan has one
    return scenario.gpu.key or f"{scenario.gpu.capacity_bytes}B"


def how_many(gpus: int, per_node: int | None, times: str = "x") -> str:
    """Return a number of GPUs as it was asked for: "2x8x" where machines were named."""
    return f"{gpus // per_node}{times}{per_node}{times}" if per_node else f"{gpus}{times}"


def command(scenario: Scenario, job: Job, gpus: int, per_node: int | None = None) -> str:
    """Return the command that estimates this job."""
    count = how_many(gpus, per_node) if gpus > 1 else ""
    gpu = f"{count}{gpu_word(scenario)}"
    words = [model_word(scenario), "--gpu", gpu, *option_words(fields_of(scenario, job))]
    return f"vrambudget {shlex.join(words)}"
