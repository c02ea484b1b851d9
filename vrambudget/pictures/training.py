"""A training as diffusers' scripts train: the denoiser alone is on the GPU.

    prediction = denoiser(noisy latents, timesteps, text embeddings)
    loss = mse(prediction.float(), target.float())
    backward, clip, optimizer.step, optimizer.zero_grad

Latents and text embeddings were made before and are the step's inputs, as the scripts cache them.
LoRA's weights are float32, as kohya's trainer has them and diffusers' scripts in fp16; in bf16 the
scripts leave them in the base's type, in which peft made them (--adapters base). All else is frozen
in the precision of the weights. A base in fp8 is as kohya's trainers keep it (fp8_base): linear
layers' weights in float8, cast at each use. Swapped blocks (blocks_to_swap): their linear layers'
weights take turns in those of the others.

Source: diffusers/examples/dreambooth/train_dreambooth_lora_flux.py, _lora_sdxl.py (main);
examples/text_to_image/train_text_to_image.py; sd-scripts library/custom_offloading_utils.py
(ModelOffloader, swap_weight_devices_cuda).
Not modelled: text encoders that are trained, prior preservation, EMA.
"""

from collections.abc import Iterator
from typing import Any

from vrambudget.dtypes import float8_e4m3fn, float32
from vrambudget.engine.autocast import autocast, to
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.cached_trace import CachedTrace
from vrambudget.engine.context import (
    ModelOptions,
    Platform,
    context,
    made_for,
    no_grad,
    recording,
)
from vrambudget.engine.module import Module, register
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import add
from vrambudget.ops.loss import mse_loss
from vrambudget.pictures.cards import program_name
from vrambudget.pictures.generation import PictureTape, schedule_of
from vrambudget.pictures.job import PictureJob
from vrambudget.pictures.parts import PRECISIONS, RECORDED, Part
from vrambudget.pictures.sizes import inputs_of, numbers_of, sizes_of
from vrambudget.program.form import TYPES
from vrambudget.tape.events import Purpose
from vrambudget.training.clip import clip_grad_norm
from vrambudget.training.inputs import on_device
from vrambudget.training.lora import add_lora
from vrambudget.training.optimizers import make_optimizer

_STEPS = 3


class _Loss(Module):
    """The loss of a denoiser on noisy latents."""

    def __init__(self, part: Part) -> None:
        self.denoiser = part.model
        self._part = [part]  # no module of its own

    def forward(self, **batch: Tensor) -> Outputs:
        """Return the loss, the prediction, and what a step's variables hold besides."""
        first, latents = next(iter(batch.items()))
        noise = made("randn_like", latents.shape, latents.dtype)
        batch[first] = add(latents, noise)
        outputs = self.denoiser(**batch)
        del batch
        prediction = outputs.logits
        loss = mse_loss(to(prediction, float32), to(noise, float32))
        return Outputs(loss, prediction, (noise, latents))


def trained(job: PictureJob, platform: Platform) -> PictureTape:
    """Return what steps of a job's training leave on the tape. Raises NotModelledError."""
    dtype = TYPES[PRECISIONS[job.precision]]
    name = job.denoiser
    options = ModelOptions(dtype=dtype, checkpointing=job.checkpointing)
    with recording(platform, options) as tape:
        kept = float32 if job.train == "full" else dtype
        base = "nf4" if job.base == "nf4" else "bf16"
        part = Part(job.card, name, _call_of(job), kept, base, single=job.batch == 1)
        context.options = ModelOptions(dtype=kept, checkpointing=job.checkpointing)
        if job.base == "fp8":
            _in_float8(part)
        if job.swap:
            part.swap(job.swap)
        part.arrive()
        missing = _adapt(part.model, job) if job.train == "lora" else ()
        model = _Loss(part)
        register(model, tape)
        parameters = [p for p in model.parameters() if p.requires_grad]
        sizes = sizes_of(job, part, schedule_of(job), "forward")
        with made_for(Purpose.INPUTS):
            batch = {key: on_device(x) for key, x in inputs_of(part, sizes, dtype).items()}
        part.model.numbers = numbers_of(part, sizes)
        encode = _Encoding(job) if job.latents == "encoded" else None
        tape.mark(0, "encode images" if encode else "forward", resets_allocator=True)
        held = _run(job, CachedTrace(model), parameters, batch, encode)
        tape.close()
        unknown = max(context.unknown_workspaces, default=0)
        count = part.parameters
        del held, model, batch, part
    return PictureTape(tape, count, sum(p.numel for p in parameters), unknown, missing)


class _Encoding:
    """A VAE that encodes a batch of pictures in each step, and what its script leaves beside it.

    Cards say so: "vae_trains_in" (else the weights' precision), and "keeps_text_encoders" of a
    script whose main function still names them when the training begins.
    """

    def __init__(self, job: PictureJob) -> None:
        own = job.card.get("vae_trains_in", job.precision)
        self._part = Part(job.card, "vae", "encode", TYPES[PRECISIONS[own]], single=job.batch == 1)
        self._part.model.eval()
        self._sizes = sizes_of(job, self._part, schedule_of(job), "encode")
        self._kept = [self._part, *_text_encoders(job)]
        for part in self._kept:
            part.arrive()
        self._pictures: list[Tensor] = []  # a loop's variable, until the next step's take its place

    def __call__(self, latents: Tensor) -> None:
        """Encode; the sample of the distribution is as large as the latents."""
        options, part = context.options, self._part
        self._pictures = [on_device(x) for x in inputs_of(part, self._sizes, part.dtype).values()]
        with no_grad():
            outputs = part.call(self._pictures, numbers_of(part, self._sizes))
            sample = made("randn", latents.shape, part.dtype)
            del outputs
            scaled = made("mul", sample.shape, part.dtype)
            del sample
            to(scaled, latents.dtype)
        context.options = options


def _text_encoders(job: PictureJob) -> Iterator[Part]:
    """Yield the text encoders that a script leaves on the GPU."""
    for name in job.card["components"] if job.card.get("keeps_text_encoders") else ():
        if name.startswith("text_encoder"):
            yield Part(job.card, name, "forward", TYPES[PRECISIONS[job.precision]])


def _run(
    job: PictureJob,
    model: Module,
    parameters: list[Any],
    batch: dict[str, Tensor],
    encode: _Encoding | None,
) -> Any:
    optimizer = make_optimizer(job.optimizer, None, parameters)
    dtype = TYPES[PRECISIONS[job.precision]]
    region = None if dtype is float32 else dtype
    outputs: Any = None
    for step in range(_STEPS):
        for micro in range(min(job.grad_accum, 2)):  # from the second on they are alike
            outputs = None
            if encode is not None:
                if step or micro:
                    context.tape.mark(step, "encode images")
                encode(next(iter(batch.values())))
            if step or micro or encode is not None:
                context.tape.mark(step, "forward")
            with autocast(region):
                outputs = model(**batch)
            context.tape.mark(step, "backward")
            run_backward(outputs.loss)
        context.tape.mark(step, "optimizer_step")
        clip_grad_norm(parameters)
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        loss, outputs = outputs.loss, None
        context.tape.mark(step, "step_end")
    return loss


def _call_of(job: PictureJob) -> str:
    """Return which program is played: one of its own where adapters are on modulation, too."""
    own = RECORDED / f"{program_name(job.card, job.denoiser)}.blocks.program"
    return "blocks" if job.targets == "blocks" and own.is_file() else job.train or "lora"


def _adapt(model: Module, job: PictureJob) -> tuple[str, ...]:
    """Put LoRA's weights into a frozen denoiser; return what was not recorded of them."""
    own = TYPES[PRECISIONS[job.precision]] if job.adapters == "base" else None
    named = job.adapted
    known = [name for name in named if _call_of(job) == "blocks" or "norm" not in name]
    targets = tuple(named if job.targets != "blocks" else known)
    add_lora(model, job.rank, targets, model_type="", casts_to=own)
    return ("adapters of modulation",) if len(targets) < len(named) else ()


def _in_float8(part: Part) -> None:
    for v in part.linear_weights():
        v.dtype = float8_e4m3fn
