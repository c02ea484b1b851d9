"""A generation: the pipeline's own call, for a few steps of its scheduler.

All steps of denoising allocate alike, so few are traced. Guidance doubles the batch where the
pipeline does so by itself.
"""

from typing import Any

import torch

from vrambudget.engine.context import Platform
from vrambudget.pictures.components import pipeline
from vrambudget.pictures.four_bit import in_four_bit
from vrambudget.pictures.job import PictureJob
from vrambudget.pictures.phases import Schedule
from vrambudget.traced.mode import Following
from vrambudget.traced.step import Stepped, stepped

_STEPS = 2  # of the scheduler; a second expert has a step of its own
_LARGE = 2**30  # parameters of a text encoder from which on people put it in 4 bits


def generated(job: PictureJob, platform: Platform) -> Stepped:
    """Return what one call of a job's pipeline leaves on the tape. Raises NotModelledError."""
    pipe = pipeline(job)
    packed = [name for name, part in pipe.components.items() if _is_packed(job, name, part)]
    for name in packed:
        in_four_bit(pipe.components[name])
    schedule = Schedule(pipe, job.offload, packed)

    def prepare(mode: Following) -> None:
        pipe.upcast_vae = lambda: pipe.vae.to(torch.float32)
        schedule.begin(mode)

    def generate(*_: Any) -> Any:
        with _on_the_gpu(type(pipe)), torch.no_grad():
            return pipe(["a prompt"] * job.batch, **_sizes(job)).values()

    modules = tuple(schedule.parts.values())
    return stepped(generate, modules, steps=1, platform=platform, prepare=prepare)


def _is_packed(job: PictureJob, name: str, part: Any) -> bool:
    """Whether a job has a component in 4 bits: the denoiser, and text encoders of billions."""
    if job.base != "nf4" or not isinstance(part, torch.nn.Module):
        return False
    is_denoiser = name.startswith(("transformer", "unet"))
    return is_denoiser or sum(p.numel() for p in part.parameters()) > _LARGE


def _sizes(job: PictureJob) -> dict[str, Any]:
    sizes = {"height": job.height, "width": job.width, "num_inference_steps": _STEPS}
    if job.frames:
        sizes["num_frames"] = job.frames
    return {**sizes, "output_type": "pt"}


class _on_the_gpu:  # noqa: N801 - a context
    """The device of a pipeline whose components are on none."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        self._own = self._kind.__dict__.get("_execution_device")
        self._kind._execution_device = property(lambda _: torch.device("cuda"))  # type: ignore[attr-defined] # noqa: SLF001

    def __exit__(self, *_: object) -> None:
        if self._own is None:
            del self._kind._execution_device  # type: ignore[attr-defined] # noqa: SLF001
        else:
            self._kind._execution_device = self._own  # type: ignore[attr-defined] # noqa: SLF001
