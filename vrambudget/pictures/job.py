"""What is asked of a pipeline: train or generate, at which size, with what on the GPU."""

from dataclasses import dataclass
from typing import Any, Literal

from vrambudget.errors import VramBudgetError
from vrambudget.pictures.cards import card

Train = Literal["lora", "full"]
Offload = Literal["none", "model", "sequential"]
_LARGEST = 16_384  # pixels along a side, or frames


@dataclass(frozen=True, slots=True)
class PictureJob:
    """One generation, or the steps of a training, of a pipeline that a card describes."""

    name: str
    height: int
    width: int
    frames: int = 0  # 0: pictures
    batch: int = 1
    train: Train | None = None
    rank: int = 16
    checkpointing: bool = False
    optimizer: str = "adamw"
    precision: str = "bf16"
    base: str = "16-bit"  # or nf4: the linear layers of the denoiser and of large text encoders
    offload: Offload = "none"

    @property
    def card(self) -> dict[str, Any]:
        """The pipeline's model card."""
        return card(self.name)


def picture_job(
    name: str, *, resolution: str | None = None, frames: int | None = None, **asked: Any
) -> PictureJob:
    """Return the job with its card's defaults. Raises VramBudgetError for sizes that cannot be."""
    own = card(name)
    height, width = _sizes(resolution, own)
    count = own["frames"] if frames is None else frames
    _check_frames(count, own)
    given = {key: value for key, value in asked.items() if value is not None}
    job = PictureJob(name, height, width, count, **{"precision": own["precision"], **given})
    for word in ("batch", "rank"):
        if not 1 <= getattr(job, word) <= _LARGEST:
            raise VramBudgetError(
                f"--{word} is {getattr(job, word)}; it should be from 1 to {_LARGEST:,}"
            )
    if job.train and job.offload != "none":
        raise VramBudgetError(
            f"--offload {job.offload} is for generation; a training needs its gradients on the GPU",
            hint="--base nf4 and --checkpointing make a training smaller",
        )
    if job.train == "full" and job.base != "16-bit":
        raise VramBudgetError(
            f"weights in {job.base} cannot be trained themselves", hint="--train lora"
        )
    return job


def _sizes(resolution: str | None, own: dict[str, Any]) -> tuple[int, int]:
    """Return height and width: of "1024" both, of "480x832" one each."""
    words = resolution.lower().split("x") if resolution is not None else own["resolution"]
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(0 < n <= _LARGEST for n in numbers):
        raise VramBudgetError(
            f"--resolution is {resolution!r}; it should be pixels", hint="1024, or 480x832"
        )
    multiple = own["multiple"]
    for n in numbers:
        if n % multiple:
            near = max(multiple, round(n / multiple) * multiple)
            raise VramBudgetError(
                f"--resolution has {n}; {own['title']} needs multiples of {multiple}",
                hint=f"the nearest that works is {near}",
            )
    return numbers[0], numbers[-1]


def _check_frames(frames: int, own: dict[str, Any]) -> None:
    step = own["frames_step"]
    if not step and frames:
        raise VramBudgetError(
            f"--frames is {frames}, but {own['title']} makes pictures", hint="leave --frames out"
        )
    if step and (not 1 <= frames <= _LARGEST or (frames - 1) % step):
        near = (
            max(1, round((frames - 1) / step) * step + 1) if frames <= _LARGEST else own["frames"]
        )
        raise VramBudgetError(
            f"--frames is {frames}; {own['title']} needs {step} n + 1 frames",
            hint=f"the nearest that works is {near}",
        )
