"""The budget of a generation or a training of a pipeline, with the peak of each phase."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vrambudget.budget import Budget, Parameters
from vrambudget.config.gpus import Gpu
from vrambudget.config.versions import default_version, plain_version
from vrambudget.engine.passes import CannotRepeatError
from vrambudget.errors import VramBudgetError
from vrambudget.estimator import on_gpu
from vrambudget.pictures.generation import generated, schedule_of
from vrambudget.pictures.job import PictureJob
from vrambudget.pictures.phases import phase_peaks
from vrambudget.pictures.training import trained
from vrambudget.remarks import remarks_on_choice, remarks_on_convolutions
from vrambudget.scenario import platform_of
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import replay

_TEXT = {
    "cached": "text was encoded before",
    "encoded": "text is encoded at the start, with every component on the GPU",
    "kept": "text is encoded on the GPU, and the script leaves the text encoders there",
}


@dataclass(frozen=True, slots=True)
class PictureBudget:
    """What a job takes, and its tape."""

    budget: Budget
    tape: Tape

    @property
    def phases(self) -> dict[str, int]:
        """The most bytes that are allocated in each of its phases."""
        return phase_peaks(self.tape)


def picture_budget(
    job: PictureJob,
    gpu: Gpu | None,
    torch: str | None = None,
    notes: Sequence[str] = (),
    uncounted: Sequence[str] = (),
) -> PictureBudget:
    """Return what a job of a pipeline takes. Raises NotModelledError for what was not recorded.

    `notes` and `uncounted`: what a trainer's file says besides.
    """
    version = default_version("torch") if torch is None else plain_version(torch)
    if version is None:
        raise VramBudgetError(f"--torch is {torch!r}; it should be a version, as 2.11")
    traced, platform = trained if job.train else generated, platform_of(gpu, version)
    try:
        left = traced(job, platform)
    except CannotRepeatError:
        left = traced(job, platform, in_full=True)
    replayed = replay(left.tape)
    device, out_of_memory = on_gpu(gpu, left.tape, replayed)
    budget = Budget(
        model=job.card["title"],
        job=_described(job, version, len(replayed.steps)),
        parameters=Parameters(left.parameters, left.trainable),
        peak=replayed.peak,
        breakdown=replayed.breakdown,
        steps=replayed.steps,
        device=device,
        out_of_memory=out_of_memory,
        not_modelled=(*left.missing, *uncounted),
        warnings=(
            *notes,
            *_notes(job),
            *remarks_on_convolutions(left.tape, left.unknown_workspace_bytes),
            *remarks_on_choice(gpu),
        ),
    )
    return PictureBudget(budget, left.tape)


def _notes(job: PictureJob) -> Iterator[str]:
    source = schedule_of(job).source
    yield (
        f"played from programs of diffusers' own code, recorded with {source['diffusers']}; no"
        " weights were read"
    )
    if job.train:
        yield f"{_TEXT[job.text]}; the step's latents are {job.latents}"


def _described(job: PictureJob, version: str, steps: int) -> dict[str, Any]:
    return {
        "mode": "step",
        "steps": steps,
        "precision": f"{'amp-' * bool(job.train and job.precision != 'fp32')}{job.precision}",
        "weights": "fp32" if job.train == "full" else job.precision,
        "quant": None if job.base == "bf16" else job.base,
        "lora_rank": job.rank if job.train == "lora" and job.adapters == "fp32" else None,
        "optimizer": job.optimizer if job.train else "none",
        "checkpointing": "full" if job.checkpointing else "none",
        "torch": version,
    }
