"""What is asked of a pipeline: train or generate, at which size, with what on the GPU."""

from dataclasses import dataclass
from typing import Any, Literal

from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.pictures.cards import card

Train = Literal["lora", "full"]
Offload = Literal["none", "model", "sequential", "group"]
Precision = Literal["bf16", "fp16", "fp32"]
Base = Literal["bf16", "fp8", "nf4"]
AdapterType = Literal["fp32", "base"]
Only = Literal["encode-text", "encode-images", "denoise", "decode"]
_TRAINING = "checkpointing grad_accum targets latents optimizer adapters saves_in text"
_GENERATION = "only vae_slicing vae_tiling"
_LARGEST = 16_384  # pixels along a side, or frames


@dataclass(frozen=True, slots=True)
class PictureJob:
    """One generation, or the steps of a training, of a pipeline that a card describes."""

    name: str
    height: int
    width: int
    frames: int = 0  # 0: pictures
    batch: int = 1
    grad_accum: int = 1  # batches whose gradients are added up before a training's step
    train: Train | None = None
    rank: int = 16
    adapters: AdapterType = "fp32"
    targets: str | None = None  # modules that take adapters, if not the model card's; or "blocks"
    checkpointing: bool = False
    optimizer: str = "adamw"
    precision: Precision = "bf16"
    base: Base = "bf16"  # as the precision has it; nf4: of large text encoders, too
    offload: Offload = "none"
    swap: int = 0  # blocks whose linear layers' weights wait in main memory
    saves_in: Literal["fp32"] | None = None  # what the denoiser is cast to after the last step
    latents: Literal["cached", "encoded"] = "cached"  # encoded by a VAE on the GPU in a training
    text: Literal["cached", "encoded", "kept"] = "cached"  # at the start, beside all else; or kept
    vae_slicing: bool = False  # as pipe.enable_vae_slicing()
    vae_tiling: bool = False
    only: Only | None = None  # one component's call alone

    @property
    def denoiser(self) -> str:
        """The component that is trained."""
        return "transformer" if "transformer" in self.card["components"] else "unet"

    @property
    def adapted(self) -> tuple[str, ...]:
        """The modules that take adapters."""
        own = self.card["linear_in_blocks" if self.targets == "blocks" else "lora_targets"]
        return tuple(own if self.targets in (None, "blocks") else self.targets.split(","))

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of its schedule's program."""
        found = {"batch": self.batch, "height": self.height, "width": self.width}
        return {**found, "frames": self.frames} if self.frames else found

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
    for word in ("batch", "rank", "grad_accum"):
        if not 1 <= getattr(job, word) <= _LARGEST:
            raise VramBudgetError(
                f"--{word} is {getattr(job, word)}; it should be from 1 to {_LARGEST:,}"
            )
    if job.batch > own.get("pictures", job.batch):
        raise NotModelledError(
            f"--batch is {job.batch}; {own['title']} was recorded one picture at a time",
            hint="`vrambudget rehearse --gpu GPU -- python generate.py` runs any pipeline",
        )
    _check_together(job)
    return job


def _check_together(job: PictureJob) -> None:
    """Raise VramBudgetError for what cannot be together."""
    if job.train and job.offload != "none":
        raise VramBudgetError(
            f"--offload {job.offload} is for generation; a training needs its gradients on the GPU",
            hint="--base nf4 and --checkpointing make a training smaller",
        )
    if job.train == "full" and (job.base != "bf16" or job.swap):
        what = f"weights in {job.base}" if job.base != "bf16" else "blocks that are swapped"
        raise VramBudgetError(f"{what} cannot be trained themselves", hint="--train lora")
    of, hint = (_GENERATION, "leave --train out") if job.train else (_TRAINING, "add --train lora")
    for word in of.split():
        if getattr(job, word) != PictureJob.__dataclass_fields__[word].default:
            what = "generation" if job.train else "training"
            raise VramBudgetError(f"--{word.replace('_', '-')} is of a {what}", hint=hint)


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
    needed = own["multiple"]
    ways = (
        (needed, "needs", VramBudgetError),
        (own.get("recorded_step", needed), "was recorded at", NotModelledError),
    )
    for step, verb, error in ways:
        for n in numbers:
            if n % step:
                raise error(
                    f"--resolution has {n}; {own['title']} {verb} multiples of {step}",
                    hint=f"the nearest that works is {max(step, round(n / step) * step)}",
                )
    return numbers[0], numbers[-1]


def _check_frames(frames: int, own: dict[str, Any]) -> None:
    step = own["frames_step"]
    if not step and frames:
        raise VramBudgetError(
            f"--frames is {frames}, but {own['title']} makes pictures", hint="leave --frames out"
        )
    if step and (not 1 <= frames <= _LARGEST or (frames - 1) % step):
        near = max(1, round((min(frames, _LARGEST) - 1) / step) * step + 1)
        raise VramBudgetError(
            f"--frames is {frames}; {own['title']} needs {step} n + 1 frames",
            hint=f"the nearest that works is {near}",
        )
