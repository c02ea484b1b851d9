"""A training as diffusers' scripts train: the denoiser alone is on the GPU.

    prediction = denoiser(noisy latents, timesteps, text embeddings)
    loss = mse(prediction.float(), target.float())
    backward, clip, optimizer.step, optimizer.zero_grad

Latents and text embeddings were made before and are the step's inputs, as the scripts cache them.
LoRA's weights are float32, all else is frozen in the precision of the weights.

Source: diffusers/examples/dreambooth/train_dreambooth_lora_flux.py, _lora_sdxl.py (main);
examples/text_to_image/train_text_to_image.py.
Not modelled: text encoders that are trained, prior preservation, EMA.
"""

from collections.abc import Callable
from typing import Any

import torch

from vrambudget.engine.context import Platform
from vrambudget.errors import NotModelledError
from vrambudget.pictures.components import TYPES, component
from vrambudget.pictures.four_bit import in_four_bit
from vrambudget.pictures.inputs import inputs_for
from vrambudget.pictures.job import PictureJob
from vrambudget.traced.step import Stepped, stepped

_STEPS = 3
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
    "sgd": torch.optim.SGD,
}


def trained(job: PictureJob, platform: Platform) -> Stepped:
    """Return what steps of a job's training leave on the tape. Raises NotModelledError."""
    name = "transformer" if "transformer" in job.card["components"] else "unet"
    denoiser = component(job, name)
    weights = _adapted(job, denoiser) if job.train == "lora" else _all(denoiser)
    if job.checkpointing:
        denoiser.enable_gradient_checkpointing()
    denoiser.train()
    optimizer = _OPTIMIZERS[job.optimizer](weights, lr=1e-4)
    given = inputs_for(job, denoiser)
    dtype = TYPES[job.precision]

    def step(_denoiser: Any, _optimizer: Any, *tensors: torch.Tensor) -> torch.Tensor:
        args, kwargs, latents = given.call(tensors)
        noise = torch.randn_like(latents)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not torch.float32):
            prediction = denoiser(*args, **kwargs, return_dict=False)[0]
            loss = torch.nn.functional.mse_loss(prediction.float(), noise.float())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return stepped(step, (denoiser, optimizer, *given.tensors), steps=_STEPS, platform=platform)


def _all(denoiser: Any) -> list[torch.nn.Parameter]:
    """Let all weights be trained: in float32, under autocast."""
    denoiser.float()
    return list(denoiser.parameters())


def _adapted(job: PictureJob, denoiser: Any) -> list[torch.nn.Parameter]:
    """Put LoRA's weights into a frozen denoiser; they are float32 (cast_training_params)."""
    try:
        from peft import LoraConfig  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NotModelledError(
            "LoRA's weights are put in by PEFT, which is not installed", hint="pip install peft"
        ) from error
    denoiser.requires_grad_(False)  # noqa: FBT003 - torch's own way
    if job.base == "nf4":
        in_four_bit(denoiser)
    targets = job.card["lora_targets"]
    config = LoraConfig(
        r=job.rank, lora_alpha=job.rank, init_lora_weights="gaussian", target_modules=targets
    )
    with torch.device("meta"):
        denoiser.add_adapter(config)
    weights = [p for p in denoiser.parameters() if p.requires_grad]
    for p in weights:
        p.data = p.data.to(torch.float32)
    return weights
