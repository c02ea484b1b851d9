"""The configuration of a job that is compiled: the model's keys, and what its family says of it.

This is all that an estimate sees of it. Building the model imports torch, whose installed version
compiles; the rules around it are those of the job's version.

Not modelled: torch.compile's modes and options, dynamic shapes, several GPUs, generation, 4-bit
weights, the loops of Lightning, accelerate and TRL.
"""

import importlib.util
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Self

from vrambudget.compiled.findings import findings
from vrambudget.config import device_mesh
from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig
from vrambudget.config.settings import Field
from vrambudget.config.versions import default_version, installed_version, plain_version
from vrambudget.errors import NotModelledError

CHECKED = ("2.11", "2.13", "2.14", "2.15")
"""Versions of torch whose compiler was held against rehearsals, the oldest first."""

_PLATFORMS = ("linux",)
_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "mode": ("train", "eval"),
    "loop": ("plain", "nanogpt", "trainer"),
    "ranks": (None, 1),
    "quant": (None,),
    "checkpointing": ("none", "full"),
    "use_cache": (False,),
    "compile_mode": ("default",),  # neither CUDA graphs nor kernels that benchmarks choose
}
"""What a compiled job may be: field and values."""

REHEARSE = "`vrambudget rehearse` runs compiled jobs, on Linux with PyTorch's CUDA build"


class CompiledConfig(ModelConfig):
    """What a family's configuration has besides, for a job with `compile`: see compiled_config."""

    keys: Mapping[str, Any] = Field(default_factory=dict, description="as they were found")
    job: Job | None = Field(None, description="what decides how the model is built")
    pads: bool | None = Field(
        None, description="what pad_mm's benchmark says; None: both ways, and the larger is shown"
    )

    def for_job(self, job: Job) -> Self:
        """Return the configuration with the job that its model is built for."""
        return super().for_job(job).model_copy(update={"job": job})

    def notes(self) -> Iterator[str]:
        """Yield what the compiler reported."""
        yield from findings.notes()

    def not_modelled(self) -> Iterator[str]:
        """Yield the operations that were traced by their results alone."""
        yield from findings.not_modelled
        if self.model_type == "bart":
            yield "512 KiB that BART's first backward pass was seen to add: why is not known"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it is made of: its class is no module's, nor that of a recorded family."""
        family: type[ModelConfig] = type(self).__bases__[1]
        plain = family._made(self.__dict__, self.model_fields_set)
        return _remade, (plain, self.__dict__, self.model_fields_set)

    def refuse(self, job: Job) -> None:
        """Raise NotModelledError where PyTorch's compiler cannot run, or was not checked."""
        _refuse(job)
        if job.checkpointing != "none" and self.model_type == "nanogpt":
            raise NotModelledError("nanoGPT has no checkpointing to compile", hint=REHEARSE)

    def build(self, task: Task) -> Any:
        """Return the model with the head for `task`, its weights allocated."""
        job = self.job
        assert job is not None  # noqa: S101 - a model is built for a job
        if not job.compile:
            return super().build(task)
        from vrambudget.compiled import build  # noqa: PLC0415 - it imports torch

        module = getattr(self, "module", None)
        if module is not None:
            return build.compiled_module(module, getattr(self, "loss", None), pads=bool(self.pads))
        return build.compiled_model(self.keys, job, pads=bool(self.pads))


def compiled_config(
    plain: ModelConfig, keys: Mapping[str, Any], *, pads: bool | None = None
) -> CompiledConfig:
    """Return a family's configuration for a job that is compiled."""
    made = _class_of(type(plain))
    return made.model_construct(**{**dict(iter(plain)), "keys": dict(keys), "pads": pads})


def _class_of(family: type[ModelConfig]) -> type[CompiledConfig]:
    return type(f"Compiled{family.__name__}", (CompiledConfig, family), {})


def _remade(
    plain: ModelConfig, values: Mapping[str, Any], given: Collection[str]
) -> CompiledConfig:
    return _class_of(type(plain))._made(values, given)


def compiler_version() -> str:
    """Return the version of torch that a compiled job runs, where it names none: its compiler's."""
    named = os.environ.get("VRAMBUDGET_TORCH")
    return named or plain_version(installed_version("torch")) or default_version("torch")


def installed_torch() -> str:
    """Return the version of torch that compiles."""
    return plain_version(installed_version("torch")) or "of an unknown version"


def _refuse(job: Job) -> None:
    if importlib.util.find_spec("torch") is None:
        raise NotModelledError(
            "torch.compile is traced by PyTorch's own compiler, and torch is not installed",
            hint=f"pip install 'vrambudget[torch]'; {REHEARSE}",
        )
    if not sys.platform.startswith(_PLATFORMS):
        raise NotModelledError(f"torch.compile is not modelled on {sys.platform}", hint=REHEARSE)
    installed = installed_torch()
    if installed.partition("+")[0] not in CHECKED:
        raise NotModelledError(
            f"torch {installed} is installed, whose compiler was not checked",
            hint=f"checked are {', '.join(CHECKED[:-1])} and {CHECKED[-1]}; {REHEARSE}",
        )
    for name, supported in _SUPPORTED.items():
        value = getattr(job, name)
        if value not in supported:
            raise NotModelledError(
                f"{name} is {value!r}, which is not modelled for a compiled model",
                hint=device_mesh.REHEARSE if name == "ranks" else REHEARSE,
            )
