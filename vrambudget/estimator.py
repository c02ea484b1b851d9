"""`estimate`: a scenario in, a `Budget` out.

config  ->  job  ->  tape (simulate)  ->  replay  ->  budget
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from vrambudget.budget import Budget, Device, FullAt, OutOfMemory, Parameters
from vrambudget.config.gpus import Gpu
from vrambudget.remarks import not_modelled, remarks
from vrambudget.scenario import Scenario, resolve
from vrambudget.simulate import Recording, simulate
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import Replay, replay_for, replay_on
from vrambudget.training.inputs import row_text

if TYPE_CHECKING:
    from vrambudget.config.job_fields import RunFields


@dataclass(frozen=True, slots=True)
class Traced:
    """A scenario that was simulated, with what a picture of it needs."""

    scenario: Scenario
    tape: Tape
    budget: Budget
    peak_event: int  # the event of the tape that most is allocated after
    is_steady: bool = True  # False: later steps may reserve more, and that may decide

    @property
    def available_bytes(self) -> int | None:
        """What the GPU has for PyTorch, None without a GPU."""
        gpu = self.scenario.gpu
        return gpu.available_bytes if gpu else None


def estimate(
    model: Any = None,
    *,
    gpu: str | Gpu | None = None,
    inputs: Any = None,
    loss: Any = None,
    **fields: "Unpack[RunFields]",
) -> Budget:
    """Return what a job takes, in bytes; `fields` are those of `Job`, or `config`, files of a run.

    `model` names one (ModelSource), or is a live torch module, whose own code is traced:
    `inputs` are then tensors by name or in order, `loss` a function of outputs and inputs.

    Raises VramBudgetError for a model, a field or a GPU that makes no sense.
    """
    of_module = {"inputs": inputs, "loss": loss}
    given = {name: value for name, value in of_module.items() if value is not None}
    return estimate_scenario(resolve(model, gpu=gpu, **given, **fields))


def estimate_scenario(scenario: Scenario) -> Budget:
    """Return the budget of a resolved scenario."""
    return trace_job(scenario).budget


def trace_job(scenario: Scenario, *, settles: bool = True) -> Traced:
    """Return the budget of a resolved scenario with the tape that it was made of, for pictures.

    Near the GPU's limit steps go on until memory `settles`; without, the first ones answer sooner.
    """
    distributed, available_bytes = None, scenario.gpu.available_bytes if scenario.gpu else None
    if scenario.job.mesh.ranks > 1:
        from vrambudget.per_rank import fullest  # noqa: PLC0415 - most jobs have one GPU

        most = fullest(scenario.config, scenario.job, scenario.platform)
        scenario = replace(scenario, job=most.job)
        recording, replayed, distributed = most.recording, most.replayed, most.distributed
    else:
        recording = simulate(scenario.config, scenario.job, scenario.platform)
        replayed = replay_for(recording.tape, available_bytes, settles=settles)
    if (step := replayed.unseen_step) is not None:
        recording = simulate(scenario.config, scenario.job, scenario.platform, shown=step)
        replayed = replay_for(recording.tape, available_bytes, settles=settles)
    device, out_of_memory = on_gpu(scenario.gpu, recording.tape, replayed)
    budget = Budget(
        model=scenario.model,
        job=_resolved(scenario, recording, replayed),
        parameters=Parameters(recording.parameters, recording.trainable),
        peak=replayed.peak,
        breakdown=replayed.breakdown,
        steps=replayed.steps,
        device=device,
        out_of_memory=out_of_memory,
        not_modelled=tuple(not_modelled(scenario)),
        warnings=remarks(scenario, recording, replayed),
        distributed=distributed,
        full_at=_full_at(scenario, recording.tape, out_of_memory),
    )
    return Traced(
        scenario, recording.tape, budget, replayed.peak_event, is_steady=replayed.is_steady
    )


def _full_at(scenario: Scenario, tape: Tape, full: OutOfMemory | None) -> FullAt | None:
    if scenario.job.mode != "generate":
        return None
    from vrambudget.full_length import full_at  # noqa: PLC0415 - most jobs train

    return full_at(scenario, tape, full)


def _resolved(scenario: Scenario, recording: Recording, replayed: Replay) -> dict[str, Any]:
    """Return the job's fields, the steps that were replayed, and the kernel that sdpa selects.

    `transformers` is None where the model's code is no version's of it; the kernel is "none" where
    no attention runs; `inputs` are a row's, of a model that reads more than text.
    """
    job = scenario.job.model_dump(mode="json")
    job["steps"] = max(job["steps"], len(replayed.steps))
    if row := row_text(scenario.config_of_job, scenario.job):
        job["inputs"] = row
    if not scenario.config.checked_with:
        job["transformers"] = None
    if recording.draws is not None:
        job["draw"] = recording.draws.fullest
    if scenario.job.attention == "sdpa":
        names = {f"{name}_attention": name for name in ("cudnn", "flash", "efficient")}
        ran = set(recording.tape.operations)
        kernels = sorted(names[name] for name in names.keys() & ran)
        by_math = "softmax" in ran and scenario.config.checked_with
        job["attention_kernel"] = " and ".join(kernels) or ("math" if by_math else "none")
    return job


def on_gpu(
    gpu: Gpu | None, tape: Tape, replayed: Replay
) -> tuple[Device | None, OutOfMemory | None]:
    """Return how a replayed tape stands on a GPU, None without one; where it is full, if it is."""
    if gpu is None:
        return None, None
    peak_bytes = replayed.peak.reserved_bytes + gpu.context_bytes
    headroom_bytes = gpu.capacity_bytes - peak_bytes
    out_of_memory = None
    if headroom_bytes < 0:  # the cache is larger than the GPU: it may still do with less
        out_of_memory = replay_on(tape, gpu.available_bytes)
    device = Device(
        name=gpu.name,
        capacity_bytes=gpu.capacity_bytes,
        context_bytes=gpu.context_bytes,
        peak_bytes=peak_bytes,
        headroom_bytes=headroom_bytes,
        fits=out_of_memory is None,
        context_range=gpu.context_range,
        context_source=gpu.context_source,
    )
    return device, out_of_memory
