"""`trace`: what a training step of one's own takes, by its own code.

    budget = vrambudget.trace(step, gpu="12GB")
    budget = vrambudget.trace(step, batch, gpu="12GB")  # what step is called with

The step is called a few times, as a loop does, on fake tensors of the GPU: forward, backward, the
optimizers of torch.optim and whatever stands between them. Nothing is computed, and what the step
changes in modules, optimizers and schedulers is put back.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vrambudget.budget import Budget, Parameters
from vrambudget.config.fields.software import DriverAddresses
from vrambudget.config.gpus import Gpu, find_gpu
from vrambudget.config.versions import default_version
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.estimator import on_gpu
from vrambudget.integrations.rehearsal import rehearsal_command
from vrambudget.ops.workspaces import asked_cublas_bytes
from vrambudget.remarks import remarks_on_choice, remarks_on_convolutions
from vrambudget.scenario import platform_of
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.replay import replay

if TYPE_CHECKING:
    from vrambudget.eager.step import Stepped

_MOST_STEPS = 100


def trace(
    step: Callable[..., Any],
    *given: Any,
    gpu: str | Gpu | None = None,
    steps: int = 3,
    torch: str | None = None,
    driver_addresses: DriverAddresses = "rising",
    warm_process: bool = False,
) -> Budget:
    """Return what `steps` calls of `step(*given)` take.

    Modules, optimizers and tensors that the step uses count as on the GPU, wherever they are.
    `torch`: whose kernels run, "2.11"; by default the installed version.
    `driver_addresses`, `warm_process`: as of a job.

    Raises NotModelledError for what cannot be traced, with the line that asked for it.
    """
    if not callable(step):
        raise VramBudgetError(
            f"step is {step!r}; it should be a function",
            hint="vrambudget.trace(train_step, batch)",
        )
    if type(steps) is not int or not 1 <= steps <= _MOST_STEPS:
        raise VramBudgetError(f"steps is {steps!r}; it should be from 1 to {_MOST_STEPS}")
    found = find_gpu(gpu) if isinstance(gpu, str) else gpu
    version = torch or default_version("torch")
    try:
        from vrambudget.eager.step import stepped  # noqa: PLC0415 - it imports torch

        platform = replace(platform_of(found, version), cublas_bytes=asked_cublas_bytes())
        left = stepped(step, given, steps=steps, platform=platform, warm=warm_process)
    except NotModelledError as error:
        command = rehearsal_command(gpu)
        error.hint = f"{error.hint.rstrip('.')}; here: {command}" if error.hint else command
        raise
    left.tape.driver_addresses = driver_addresses
    return _budget(left, found, version)


def _budget(left: "Stepped", found: Gpu | None, version: str) -> Budget:
    replayed = replay(left.tape)
    device, out_of_memory = on_gpu(found, left.tape, replayed)
    return Budget(
        model=left.model,
        job=_job(left, version, len(replayed.steps)),
        parameters=Parameters(left.parameters, left.trainable),
        peak=replayed.peak,
        breakdown=replayed.breakdown,
        steps=replayed.steps,
        device=device,
        out_of_memory=out_of_memory,
        not_modelled=left.not_modelled,
        warnings=tuple(_notes(found, left)),
    )


def _notes(found: Gpu | None, left: "Stepped") -> Iterator[str]:
    yield "the step's own code was traced; numbers that it reads back are assumed to be finite"
    yield from left.notes
    if asked_cublas_bytes() is not None:
        yield "cuBLAS takes the workspace that CUBLAS_WORKSPACE_CONFIG asks for in this process"
    yield from remarks_on_convolutions(left.tape, left.unknown_workspace_bytes)
    yield from remarks_on_choice(found)


def _job(left: "Stepped", version: str, steps: int) -> dict[str, Any]:
    """Return what a report says of the job."""
    return {
        "mode": "step",
        "steps": steps,
        "precision": _precision(left.tape, left.weights),
        "optimizer": " and ".join(left.optimizers) or "no optimizer",
        "checkpointing": "none",
        "torch": version,
    }


def _precision(tape: Tape, weights: frozenset[str]) -> str:
    """Return the precision as a job names it, or the weights' types where there are several."""
    copies = {
        content[1].name
        for purpose, content in zip(tape.purposes, tape.contents, strict=True)
        if purpose is Purpose.AUTOCAST_COPIES and content is not None
    }
    short = {"bfloat16": "bf16", "float16": "fp16"}
    if copies:
        return f"amp-{short[min(copies)]}"
    if len(weights) != 1:
        return " and ".join(sorted(weights)) or "no weights"
    (name,) = weights
    return {**short, "float32": "fp32"}.get(name, name)


follow = trace  # its name until 0.3
