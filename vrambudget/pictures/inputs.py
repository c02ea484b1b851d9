"""What a denoiser is called with in training, by its class: latents, text embeddings, timesteps.

    UNet2DConditionModel        latents [B, C, H/8, W/8], text [B, tokens, C]; SDXL: sizes, pooled
    FluxTransformer2DModel      packed latents [B, H/16 W/16, 64], positions of pixels and of text
    WanTransformer3DModel       latents [B, C, (frames - 1)/4 + 1, H/8, W/8]

Source: the training scripts of diffusers, and examples/research_projects for Wan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vrambudget.errors import NotModelledError
from vrambudget.pictures.components import TYPES
from vrambudget.pictures.job import PictureJob

Call = tuple[tuple[Any, ...], dict[str, Any], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tensors of a batch, and how the denoiser is called with them."""

    tensors: tuple[torch.Tensor, ...]
    call: Callable[[Sequence[torch.Tensor]], Call]  # arguments, keywords, the latents


def inputs_for(job: PictureJob, denoiser: Any) -> Inputs:
    """Return the inputs of a denoiser. Raises NotModelledError for a class without any here."""
    kind = type(denoiser).__name__
    make = _BY_CLASS.get(kind)
    if make is None:
        raise NotModelledError(
            f"no training script for {kind} is traced",
            hint="`vrambudget rehearse --gpu GPU -- python train.py` runs any",
        )
    return make(job, denoiser.config)


def _unet(job: PictureJob, config: Any) -> Inputs:
    dtype, batch = TYPES[job.precision], job.batch
    shape = (batch, config.in_channels, job.height // 8, job.width // 8)
    text = (batch, job.card["tokens"][0], config.cross_attention_dim)
    tensors = [_zeros(shape, dtype), _zeros(text, dtype)]
    if config.addition_embed_type == "text_time":
        sizes = 6  # of the image, and how it was cropped
        embedded = sizes * config.addition_time_embed_dim
        pooled = config.projection_class_embeddings_input_dim - embedded
        tensors += [_zeros((batch, pooled), dtype), _zeros((batch, sizes), dtype)]

    def call(given: Sequence[torch.Tensor]) -> Call:
        latents, text, *added = given
        times = torch.randint(0, 1000, (batch,), device="cuda")
        conditions = dict(zip(("text_embeds", "time_ids"), added, strict=False))
        more = {"added_cond_kwargs": conditions} if added else {}
        return (latents + torch.randn_like(latents), times, text), more, latents

    return Inputs(tuple(tensors), call)


def _flux(job: PictureJob, config: Any) -> Inputs:
    dtype, batch = TYPES[job.precision], job.batch
    pixels, tokens = (job.height // 16) * (job.width // 16), job.card["tokens"][1]
    tensors = (
        _zeros((batch, pixels, config.in_channels), dtype),
        _zeros((batch, tokens, config.joint_attention_dim), dtype),
        _zeros((batch, config.pooled_projection_dim), dtype),
        _zeros((pixels, 3), dtype),
        _zeros((tokens, 3), dtype),
    )

    def call(given: Sequence[torch.Tensor]) -> Call:
        latents, text, pooled, positions, text_positions = given
        keywords = {
            "hidden_states": latents + torch.randn_like(latents),
            "timestep": torch.rand(batch, device="cuda"),
            "guidance": torch.ones(batch, device="cuda") if config.guidance_embeds else None,
            "pooled_projections": pooled,
            "encoder_hidden_states": text,
            "txt_ids": text_positions,
            "img_ids": positions,
        }
        return (), keywords, latents

    return Inputs(tensors, call)


def _wan(job: PictureJob, config: Any) -> Inputs:
    dtype, batch = TYPES[job.precision], job.batch
    frames = (job.frames - 1) // 4 + 1
    tensors = (
        _zeros((batch, config.in_channels, frames, job.height // 8, job.width // 8), dtype),
        _zeros((batch, job.card["tokens"][0], config.text_dim), dtype),
    )

    def call(given: Sequence[torch.Tensor]) -> Call:
        latents, text = given
        keywords = {
            "hidden_states": latents + torch.randn_like(latents),
            "timestep": torch.randint(0, 1000, (batch,), device="cuda"),
            "encoder_hidden_states": text,
        }
        return (), keywords, latents

    return Inputs(tensors, call)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


_BY_CLASS: dict[str, Callable[[PictureJob, Any], Inputs]] = {
    "UNet2DConditionModel": _unet,
    "FluxTransformer2DModel": _flux,
    "WanTransformer3DModel": _wan,
}
