"""What to estimate, resolved: a model, a job and a GPU.

name or path  ->  config  ->  job  ->  scenario
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vrambudget.compiled.asked import compiler_defaults, compiling, original
from vrambudget.config.foreign.ultralytics import accumulation
from vrambudget.config.gpus import Gpu, count_of_gpus, find_gpu, gpu_under
from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig, load_config
from vrambudget.config.said_by_config import caches
from vrambudget.config.settings import show
from vrambudget.config.source import PROGRAM, Files, FoundModel, find_model, of_files
from vrambudget.config.unread import unread
from vrambudget.config.versions import CHECKED, CHECKED_CUDA, as_numbers, checked_version, cuda_of
from vrambudget.engine import context as engine
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models import config_class

if TYPE_CHECKING:
    from vrambudget.config.foreign.run_file import RunFile

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
    notes: tuple[str, ...] = ()  # on options that the job does not read
    path: str | None = None  # of the configuration, where a file or a folder was named
    per_step: int = 0  # pictures that the model's own trainer adds up to, at any batch

    @property
    def config_of_job(self) -> ModelConfig:
        """What the job is estimated by: a program that was not recorded for it is traced."""
        found: ModelConfig = self.config.for_job(self.job)
        return found

    @property
    def platform(self) -> engine.Platform:
        """What of the GPU and of torch decides kernels, workspaces and addresses."""
        platform = platform_of(self.gpu, self.job.torch)
        capacity_bytes = (self.gpu or find_gpu(DEFAULT_GPU)).capacity_bytes
        expands = self.job.expandable_segments
        return replace(
            platform,
            expandable_on_bytes=capacity_bytes if expands else None,
            cudnn_attention=self.job.cudnn_attention,
        )


def platform_of(gpu: Gpu | None, torch: str) -> engine.Platform:
    """Return what of a GPU and of a version of torch decides kernels and workspaces."""
    gpu = gpu or find_gpu(DEFAULT_GPU)
    return engine.Platform(
        gpu.compute_capability,
        gpu.multiprocessors,
        as_numbers(checked_version(torch, CHECKED["torch"])),
        as_numbers(checked_version(cuda_of(torch), CHECKED_CUDA)),
        gpu.l2_bytes,
    )


def resolve(
    model: Any = None, *, gpu: str | Gpu | None = None, config: Files = (), **fields: Any
) -> Scenario:
    """Return the scenario that `estimate` would do; `config` are files of a run."""
    if hasattr(model, "named_parameters"):
        if (inner := original(model)) is not None:
            model, fields = inner, {"compile": True, **fields}
        return _of_module(model, gpu=gpu, **fields)
    if array := next((name for name, v in fields.items() if getattr(v, "ndim", 0)), None):
        raise VramBudgetError(f"{array} is {show(fields[array])}; it should be one value")
    found = find_model(of_files(model, config))
    known = config_of(found)
    named = found.run.gpu if gpu is None and found.run else gpu
    if isinstance(named, str):
        count, named = count_of_gpus(named)
        fields = _of_count(count, fields, named)
    found = found.on(fields.get("ranks"), parallel=fields.get("parallel"))
    run = found.run
    own = found.job_defaults
    cached = known.keeps_cache and caches(found.values, {**own, **fields})
    defaults = {**known.job_defaults, "use_cache": cached, **own, **compiler_defaults(fields)}
    job = Job.with_defaults(fields, defaults, where=run.where if run else None)
    said = fields.keys() | (run.fields if run else {}).keys()
    usual = found.card.job if found.card and "grad_accum" not in said else {}
    per_step = usual.get("grad_accum", 0) * usual.get("batch", 0)
    job = job.model_copy(update=accumulation(job.batch, per_step))
    device = None if named is None else gpu_under(job.torch, find_gpu(named))
    known = with_head(known, found, job.task)
    known = compiling(known, found.values) if job.compile else known
    resolved, notes = job.resolve(known.for_job(job)), tuple(unread(fields, job))
    return Scenario(
        found.name, known, resolved, device, found.values, run, notes, found.path, per_step
    )


def _of_count(count: int, fields: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of a job on so many GPUs. Raises VramBudgetError for other ranks."""
    if count == 1:
        return fields
    if fields.get("ranks") not in (None, count):
        raise VramBudgetError(
            f"gpu names {count} GPUs, and ranks is {show(fields['ranks'])}: each rank has one GPU",
            hint=f"leave ranks out, or name as many GPUs: {fields['ranks']}x{name}",
        )
    return {**fields, "ranks": count}


def _of_module(
    module: Any, *, gpu: str | Gpu | None, inputs: Any = None, loss: Any = None, **fields: Any
) -> Scenario:
    """Return the scenario of a live module."""
    from vrambudget.traced.module import module_config  # noqa: PLC0415 - it imports torch

    known: ModelConfig = module_config(module, inputs, loss)
    job = Job.with_defaults(fields, {**known.job_defaults, **compiler_defaults(fields)})
    known = compiling(known, {}) if job.compile else known
    device = None if gpu is None else find_gpu(gpu)
    return Scenario(known.model_type, known, job.resolve(known.for_job(job)), device)


def config_of(found: FoundModel) -> ModelConfig:
    """Return a model's configuration: a family's, a program's, or one whose own code is traced."""
    if PROGRAM in found.values:
        from vrambudget.program.catalog import config_of_file  # noqa: PLC0415 - few name one

        return config_of_file(Path(found.values[PROGRAM]))
    try:
        return load_config(found.values, config_class, where=found.where)
    except NotModelledError as error:
        from vrambudget.program.catalog import program_config  # noqa: PLC0415 - most are known

        try:
            played = program_config(found, error)
        except NotModelledError as refusal:
            return _traced(found, refusal)
        return _traced(found, error) if played is None else played


def with_head(known: ModelConfig, found: FoundModel, task: str | None) -> ModelConfig:
    """Return a configuration with the head for a task: where a family has none, it is traced."""
    if task is None or task in {"embed", *known.tasks}:
        return known
    error = NotModelledError(
        f"{known.model_type} has no rules for task {task!r}",
        hint=f"there are rules for {', '.join(known.tasks)}; ",
    )
    return _traced(found, error)


def _traced(found: FoundModel, error: NotModelledError) -> ModelConfig:
    """Return the configuration of a model whose own code is traced. Raises `error` without."""
    from vrambudget.traced.config import traced_config  # noqa: PLC0415 - most are known

    return traced_config(found, error)
