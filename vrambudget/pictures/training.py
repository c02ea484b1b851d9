"""A training as diffusers' scripts train: the denoiser alone is on the GPU.

    prediction = denoiser(noisy latents, timesteps, text embeddings)
    loss = mse(prediction.float(), target.float())
    backward, clip, optimizer.step, optimizer.zero_grad

Latents and text embeddings were made before and are the step's inputs, as the scripts cache them;
some make them at the start, beside all that is on the GPU.
LoRA's weights are float32, as kohya's trainer has them and diffusers' scripts in fp16; in bf16 the
scripts leave them in the base's type, in which peft made them (--adapters base). All else is frozen
in the precision of the weights. A base in fp8 is as kohya's trainers keep it (fp8_base): linear
layers' weights in float8, cast at each use. Swapped blocks (blocks_to_swap): their linear layers'
weights take turns in those of the others. Some scripts cast the denoiser to float32 at the end.

Source: diffusers/examples/dreambooth/train_dreambooth_lora_flux.py, _lora_sdxl.py (main);
examples/text_to_image/train_text_to_image.py; sd-scripts library/custom_offloading_utils.py
(ModelOffloader, swap_weight_devices_cuda); accelerate/utils/operations.py (ConvertOutputsToFp32).
Not modelled: text encoders that are trained, prior preservation, EMA.
"""

from dataclasses import replace
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
from vrambudget.engine.identical_layers import stack_layers
from vrambudget.engine.module import Module, register
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import add
from vrambudget.ops.loss import mse_loss
from vrambudget.pictures.cards import program_name
from vrambudget.pictures.generation import PictureTape, schedule_of
from vrambudget.pictures.job import PictureJob
from vrambudget.pictures.parts import PRECISIONS, RECORDED, PipelinePart
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

    def __init__(self, part: PipelinePart) -> None:
        self.denoiser = part.model
        self._part = [part]  # no module of its own

    def forward(self, **batch: Tensor) -> Outputs:
        """Return the loss, what a step holds besides, and the prediction as accelerate casts it."""
        first, latents = next(iter(batch.items()))
        noise = made("randn_like", latents.shape, latents.dtype)
        batch[first] = noisy = add(latents, noise)
        prediction = to(self.denoiser(**batch).logits, float32)
        del batch
        return Outputs(mse_loss(prediction, to(noise, float32)), prediction, (noise, noisy))


def trained(job: PictureJob, platform: Platform, *, in_full: bool = False) -> PictureTape:
    """Return what steps of a job's training leave on the tape. Raises NotModelledError.

    `in_full`: trace every layer, even if they are identical; else CannotRepeatError may say so.
    """
    dtype = TYPES[PRECISIONS[job.precision]]
    name = job.denoiser
    options = ModelOptions(dtype=dtype, checkpointing=job.checkpointing)
    with recording(platform, options) as tape:
        kept = float32 if job.train == "full" else dtype
        base = "nf4" if job.base == "nf4" else "bf16"
        part = PipelinePart(job.card, name, _call_of(job), kept, base, single=job.batch == 1)
        context.options = ModelOptions(dtype=kept, checkpointing=job.checkpointing)
        if job.base == "fp8":
            _in_float8(part)
        if job.swap:
            part.swap(job.swap)
        part.arrive()
        missing: tuple[str, ...] = _adapt(part.model, job) if job.train == "lora" else ()
        model = _Loss(part)
        if not in_full:
            stack_layers(part.model)
        register(model, tape)
        parameters = [p for p in model.parameters() if p.requires_grad]
        sizes = sizes_of(job, part, schedule_of(job), "forward")
        sizes |= job.card.get("trains_at", {})
        with made_for(Purpose.INPUTS):
            batch = {key: on_device(x) for key, x in inputs_of(part, sizes, dtype).items()}
        part.model.numbers = numbers_of(part, sizes)
        early = job.text != "cached"
        encode = None
        if early or job.latents == "encoded":
            try:
                encode = _Encoding(job)
            except NotModelledError as error:
                missing = (*missing, f"encode images and the weights of the vae: {error}")
        if early:
            tape.mark(0, "encode text", resets_allocator=True)
            texts = _texts_encoded(job)
            for text in texts if job.text == "encoded" else ():
                text.leave()
            tape.mark(0, "encode images", empties_cache=True)
            if encode and job.latents == "cached":
                encode(next(iter(batch.values())))
                encode.part.leave()
                encode = None
        phase = "encode images" if encode else "forward"
        tape.mark(0, phase, resets_allocator=not early, empties_cache=early)
        held = _run(job, part, CachedTrace(model), parameters, batch, encode=encode)
        tape.close()
        unknown = max(context.unknown_workspaces, default=0)
        count = part.parameters
        del held, model, batch, part
    return PictureTape(tape, count, sum(p.numel for p in parameters), unknown, missing)


class _Encoding:
    """A VAE that encodes pictures, in the type that its card names: "vae_trains_in"."""

    def __init__(self, job: PictureJob) -> None:
        own = job.card.get("vae_trains_in", job.precision)
        self.part = PipelinePart(
            job.card, "vae", "encode", TYPES[PRECISIONS[own]], single=job.batch == 1
        )
        self.part.model.eval()
        self._sizes = sizes_of(job, self.part, schedule_of(job), "encode")
        self.part.arrive()
        self._batch: list[Tensor] = []  # a loop's variables, until the next step's take their place
        self._pictures: list[Tensor] = []

    def __call__(self, latents: Tensor) -> None:
        """Encode float32 pictures; the distribution's sample is as large as the latents."""
        options, part = context.options, self.part
        self._batch = [on_device(x) for x in inputs_of(part, self._sizes, float32).values()]
        self._pictures = [to(x, part.dtype) for x in self._batch]
        with no_grad():
            outputs = part.call(self._pictures, numbers_of(part, self._sizes))
            sample = made("randn", latents.shape, part.dtype)
            del outputs
            scaled = made("mul", sample.shape, part.dtype)
            del sample
            to(scaled, latents.dtype)
        context.options = options


def _texts_encoded(job: PictureJob) -> list[PipelinePart]:
    """Return the text encoders on the GPU, where they encoded one prompt beside all else."""
    options, dtype = context.options, TYPES[PRECISIONS[job.precision]]
    names = [name for name in job.card["components"] if name.startswith("text_encoder")]
    texts = [PipelinePart(job.card, name, "forward", dtype) for name in names]
    for part in texts:
        part.arrive()
    for part in texts:
        sizes = sizes_of(replace(job, batch=1), part, schedule_of(job), "forward")
        given = [on_device(x) for x in inputs_of(part, sizes, part.dtype).values()]
        with no_grad():
            part.call(given, numbers_of(part, sizes))
    context.options = options
    return texts


def _run(
    job: PictureJob,
    part: PipelinePart,
    model: Module,
    parameters: list[Any],
    batch: dict[str, Tensor],
    *,
    encode: _Encoding | None,
) -> Any:
    optimizer = make_optimizer(job.optimizer, None, parameters)
    dtype = TYPES[PRECISIONS[job.precision]]
    region = None if dtype is float32 else dtype
    outputs: Any = None
    for step in range(_STEPS):
        for micro in range(min(job.grad_accum, 2)):  # from the second on they are identical
            if encode is not None:
                if step or micro:
                    context.tape.mark(step, "encode images")
                encode(next(iter(batch.values())))
            if outputs is not None:
                outputs.others = outputs.others[:1]  # its target, until there is another
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
        if job.saves_in and step == _STEPS - 1:
            context.tape.mark(step, "save")
            part.cast(float32)
        context.tape.mark(step, "step_end")
    return outputs


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


def _in_float8(part: PipelinePart) -> None:
    for v in part.linear_weights():
        v.dtype = float8_e4m3fn
