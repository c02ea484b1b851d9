"""`estimate`: a model, a job and a GPU in, a `Budget` out.

config  ->  job  ->  tape (simulate)  ->  replay  ->  budget
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack

from vrambudget.budget import Budget, Device, OutOfMemory, Parameters
from vrambudget.compiled.asked import compiler_defaults, compiling, original
from vrambudget.config.gpus import Gpu, count_of_gpus, find_gpu, gpu_under
from vrambudget.config.job import Job
from vrambudget.config.loops import remark_on_leak, remarks_on_loop
from vrambudget.config.model_config import ModelConfig, load_config
from vrambudget.config.remarks_on_gpu import remarks_on_gpu
from vrambudget.config.said_by_config import caches, remarks_on_config
from vrambudget.config.source import Files, FoundModel, find_model, of_files
from vrambudget.config.versions import (
    CHECKED,
    CHECKED_CUDA,
    as_numbers,
    cuda_of,
    followed_version,
    remarks_on_versions,
)
from vrambudget.cudnn.remarks import remarks_on_convolutions
from vrambudget.engine import context as engine
from vrambudget.errors import NotModelledError
from vrambudget.full_length import full_at
from vrambudget.models import config_class
from vrambudget.ops.attention import prefers_cudnn
from vrambudget.simulate import ROUTINGS, Recording, routing_decides, simulate, simulate_routed
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import Replay, replay, replay_on
from vrambudget.units import format_bytes

if TYPE_CHECKING:
    from vrambudget.config.foreign.run_file import RunFile
    from vrambudget.config.job_fields import RunFields

DEFAULT_GPU = "a100-80gb"
"""The GPU whose kernels and workspaces are used if none is named."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What to estimate, resolved: a model, a job and a GPU (None: any that is large enough)."""

    model: str
    config: ModelConfig
    job: Job
    gpu: Gpu | None
    values: Mapping[str, Any] = field(default_factory=dict)  # the configuration as it was found
    run: "RunFile | None" = None  # what files said of it

    @property
    def platform(self) -> engine.Platform:
        """What of the GPU and of torch decides kernels, workspaces and addresses."""
        platform = platform_of(self.gpu, self.job.torch)
        capacity_bytes = (self.gpu or find_gpu(DEFAULT_GPU)).capacity_bytes
        expands = self.job.expandable_segments
        return replace(platform, expandable_on_bytes=capacity_bytes if expands else None)


def platform_of(gpu: Gpu | None, torch: str) -> engine.Platform:
    """Return what of a GPU and of a version of torch decides kernels and workspaces."""
    gpu = gpu or find_gpu(DEFAULT_GPU)
    return engine.Platform(
        gpu.compute_capability,
        gpu.multiprocessors,
        as_numbers(followed_version(torch, CHECKED["torch"])),
        as_numbers(followed_version(cuda_of(torch), CHECKED_CUDA)),
        gpu.l2_bytes,
    )


@dataclass(frozen=True, slots=True)
class Followed:
    """A scenario that was simulated, with what a picture of it needs."""

    scenario: Scenario
    tape: Tape
    budget: Budget
    peak_event: int  # the event of the tape that most is allocated after

    @property
    def room_bytes(self) -> int | None:
        """What the GPU has for PyTorch, None without a GPU."""
        gpu = self.scenario.gpu
        return gpu.room_bytes if gpu else None


def estimate(
    model: Any = None,
    *,
    gpu: str | Gpu | None = None,
    inputs: Any = None,
    loss: Any = None,
    **fields: "Unpack[RunFields]",
) -> Budget:
    """Return what a job takes, in bytes; `fields` are those of `Job`, or `config`, files of a run.

    `model` names one (ModelSource), or is a live torch module, whose own code is followed:
    `inputs` are then tensors by name or in order, `loss` a function of outputs and inputs.

    Raises VramBudgetError for a model, a field or a GPU that makes no sense.
    """
    of_module = {"inputs": inputs, "loss": loss}
    given = {name: value for name, value in of_module.items() if value is not None}
    return estimate_scenario(resolve(model, gpu=gpu, **given, **fields))


def resolve(
    model: Any = None, *, gpu: str | Gpu | None = None, config: Files = (), **fields: Any
) -> Scenario:
    """Return the scenario that `estimate` would do; `config` are files of a run."""
    if hasattr(model, "named_parameters"):
        if (inner := original(model)) is not None:
            model, fields = inner, {"compile": True, **fields}
        return _of_module(model, gpu=gpu, **fields)
    found = find_model(of_files(model, config))
    run = found.run
    known = _config_of(found)
    named = run.gpu if gpu is None and run else gpu
    if isinstance(named, str):
        count, named = count_of_gpus(named)
        fields = {"ranks": count, **fields} if count > 1 else fields
    own = found.job_defaults
    cached = known.keeps_cache and caches(found.values, {**own, **fields})
    defaults = {**known.job_defaults, "use_cache": cached, **own, **compiler_defaults(fields)}
    job = Job.with_defaults(fields, defaults, where=run.where if run else None)
    card = None if named is None else gpu_under(job.torch, find_gpu(named))
    known = compiling(known, found.values) if job.compile else known
    return Scenario(found.name, known, job.resolve(known.for_job(job)), card, found.values, run)


def _of_module(
    module: Any, *, gpu: str | Gpu | None, inputs: Any = None, loss: Any = None, **fields: Any
) -> Scenario:
    """Return the scenario of a live module."""
    from vrambudget.followed.module import module_config  # noqa: PLC0415 - it imports torch

    known: ModelConfig = module_config(module, inputs, loss)
    job = Job.with_defaults(fields, {**known.job_defaults, **compiler_defaults(fields)})
    known = compiling(known, {}) if job.compile else known
    card = None if gpu is None else find_gpu(gpu)
    return Scenario(known.model_type, known, job.resolve(known.for_job(job)), card)


def _config_of(found: FoundModel) -> ModelConfig:
    """Return a model's configuration: a family's, or one whose own code is followed."""
    try:
        return load_config(found.values, config_class, where=found.where)
    except NotModelledError as error:
        from vrambudget.followed.config import followed_config  # noqa: PLC0415 - most are known

        return followed_config(found, error)


def estimate_scenario(scenario: Scenario) -> Budget:
    """Return the budget of a resolved scenario."""
    return follow(scenario).budget


def follow(scenario: Scenario) -> Followed:
    """Return the budget of a resolved scenario with the tape that it was made of, for pictures."""
    several = None
    if scenario.job.layout.ranks > 1:
        from vrambudget.per_rank import fullest  # noqa: PLC0415 - most jobs have one GPU

        most = fullest(scenario.config, scenario.job, scenario.platform)
        scenario = replace(scenario, job=most.job)
        recording, replayed, several = most.recording, most.replayed, most.several
    else:
        recording = simulate(scenario.config, scenario.job, scenario.platform)
        replayed = replay(recording.tape)
    if (step := replayed.unseen_step) is not None:
        recording = simulate(scenario.config, scenario.job, scenario.platform, shown=step)
        replayed = replay(recording.tape)
    device, out_of_memory = on_card(scenario.gpu, recording.tape, replayed)
    budget = Budget(
        model=scenario.model,
        job=_resolved(scenario, recording),
        parameters=Parameters(recording.parameters, recording.trainable),
        peak=replayed.peak,
        breakdown=replayed.breakdown,
        steps=replayed.steps,
        device=device,
        out_of_memory=out_of_memory,
        not_modelled=tuple(_not_modelled(scenario)),
        warnings=_warnings(scenario, recording, replayed),
        several=several,
        full_at=full_at(scenario, recording.tape, out_of_memory),
    )
    return Followed(scenario, recording.tape, budget, replayed.peak_event)


def _resolved(scenario: Scenario, recording: Recording) -> dict[str, Any]:
    """Return the job's fields, and which kernel PyTorch takes for sdpa, as the tape names it.

    `transformers` is None where the model's code is no version's of it.
    """
    job = scenario.job.model_dump(mode="json")
    if not scenario.config.followed_in:
        job["transformers"] = None
    if scenario.job.attention == "sdpa":
        names = {"flash_attention": "flash", "efficient_attention": "efficient"}
        taken = sorted(names[name] for name in names.keys() & set(recording.tape.operations))
        job["attention_kernel"] = " and ".join(taken) or "math"
    return job


def on_card(
    gpu: Gpu | None, tape: Tape, replayed: Replay
) -> tuple[Device | None, OutOfMemory | None]:
    """Return how a replayed tape stands on a GPU, None without one; where it is full, if it is."""
    if gpu is None:
        return None, None
    peak_bytes = replayed.peak.reserved_bytes + gpu.context_bytes
    headroom_bytes = gpu.capacity_bytes - peak_bytes
    out_of_memory = None
    if headroom_bytes < 0:  # the cache is larger than the GPU: it may still do with less
        out_of_memory = replay_on(tape, gpu.room_bytes)
    device = Device(
        name=gpu.name,
        capacity_bytes=gpu.capacity_bytes,
        context_bytes=gpu.context_bytes,
        peak_bytes=peak_bytes,
        headroom_bytes=headroom_bytes,
        fits=out_of_memory is None,
    )
    return device, out_of_memory


def _warnings(scenario: Scenario, recording: Recording, replayed: Replay) -> tuple[str, ...]:
    return (
        *scenario.config.notes(),
        *remarks_on_versions(
            scenario.job.torch, scenario.job.transformers, scenario.config.followed_in
        ),
        *(scenario.run.notes if scenario.run else ()),
        *_assumptions(scenario, replayed),
        *_of_gpu(scenario.gpu, scenario.job, replayed),
        *_not_on_the_tape(scenario, recording),
    )


def _of_gpu(gpu: Gpu | None, job: Job, replayed: Replay) -> Iterator[str]:
    return remarks_on_gpu(gpu, job, replayed.peak.reserved_bytes) if gpu else iter(())


def _not_on_the_tape(scenario: Scenario, recording: Recording) -> Iterator[str]:
    """Yield what bitsandbytes, cuDNN or a compiler does besides what is counted."""
    yield from remarks_on_convolutions(recording.tape.operations, recording.unasked_bytes)
    if recording.paged_bytes:
        yield (
            f"paged optimizer states, {format_bytes(recording.paged_bytes)}, are in managed memory"
            " and leave the GPU when it is full: not counted"
        )
    job = scenario.job
    if job.mode == "generate" and job.cache == "static":
        yield (
            "by default generate compiles a static cache's steps with CUDA graphs, whose pools come"
            " on top: counted with disable_compile=True"
        )
    if job.quant is None:
        return
    from vrambudget.ops.four_bit import MAY_MULTIPLY_PACKED  # noqa: PLC0415 - most jobs have none

    if job.batch * (job.block or 1) <= MAY_MULTIPLY_PACKED:
        yield (
            "with so few tokens bitsandbytes may multiply 4-bit weights without dequantising them:"
            " counted as dequantised in every product"
        )


def _assumptions(scenario: Scenario, replayed: Replay) -> Iterator[str]:
    """Yield what the estimate assumes and a user may know better."""
    job = scenario.job
    if scenario.gpu is None:
        name = find_gpu(DEFAULT_GPU).name
        yield f"no GPU was named: kernels and workspaces are those of an {name}"
    elif scenario.gpu.assumed:
        yield scenario.gpu.assumed
    if job.attention == "sdpa" and prefers_cudnn(scenario.platform) and job.precision != "fp32":
        yield (
            "on this GPU PyTorch uses cuDNN's attention kernel: counted as the flash kernel,"
            " which TORCH_CUDNN_SDPA_DEPRIORITIZED=1 selects"
        )
    yield from remarks_on_config(scenario.values, job, keeps_cache=scenario.config.keeps_cache)
    yield from remarks_on_loop(job)
    if job.keep_losses == "graphs":
        peaks = [step.peak_allocated_bytes for step in replayed.steps]
        room = scenario.gpu.room_bytes - replayed.peak.reserved_bytes if scenario.gpu else None
        yield remark_on_leak(peaks, room)
    if scenario.config.has_experts:
        yield _of_experts(scenario, replayed)


def _of_experts(scenario: Scenario, counted: Replay) -> str:
    """Say how tokens are assumed to spread over experts, and what other spreads take."""
    if not routing_decides(scenario.config, scenario.job):
        return "experts run as grouped products: how tokens spread over them does not matter"
    even, collapsed = (_routed_peak(scenario, routing, counted) for routing in ROUTINGS)
    if even == collapsed:
        return f"experts one by one: {format_bytes(even)}, however tokens spread over them"
    return (
        f"experts one by one: {format_bytes(even)} if tokens spread evenly,"
        f" {format_bytes(collapsed)} if all go to the same few;"
        f" {'the larger' if scenario.job.routing == 'worst' else 'the first'} is counted"
    )


def _routed_peak(scenario: Scenario, routing: str, counted: Replay) -> int:
    """Return allocated bytes with tokens spread by `routing`; `counted` is the job's own replay."""
    if routing == scenario.job.routing:
        return counted.peak.allocated_bytes
    tape = simulate_routed(scenario.config, scenario.job, scenario.platform, routing).tape
    return replay(tape).peak.allocated_bytes


def _not_modelled(scenario: Scenario) -> Iterator[str]:
    yield from (f"config key {key!r}" for key in scenario.config.unknown_keys)
    yield from scenario.config.doubts()
    if scenario.run:
        yield from scenario.run.uncounted
