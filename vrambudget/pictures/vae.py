"""A VAE's decode in parts: one picture after another, or in tiles that overlap by a quarter.

    slicing    each picture is decoded alone; all are joined at the end
    tiling     tiles as large as the VAE's sample_size; all are kept, then joined to rows, then to
               pictures. Smaller latents are decoded at once

Source: diffusers/models/autoencoders/autoencoder_kl.py (AutoencoderKL.decode, tiled_decode), 0.42.
Not modelled: what blending makes, three lines of pixels at a time, once all tiles are decoded.
"""

from collections.abc import Mapping, Sequence

from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.ops.shape import cat, narrowed, split
from vrambudget.pictures.job import PictureJob
from vrambudget.pictures.parts import PipelinePart

_OVERLAP = 0.25
_CLASS = "diffusers.AutoencoderKL"


def check_in_parts(job: PictureJob) -> None:
    """Raise NotModelledError where a VAE of another kind is asked for slices or tiles."""
    keys = job.card["components"]["vae"]
    if (job.vae_slicing or job.vae_tiling) and keys["class"] != _CLASS:
        raise NotModelledError(
            f"{job.card['title']}: slices and tiles of {keys['class']} were not recorded",
            hint="`vrambudget rehearse --gpu GPU -- python generate.py` runs any pipeline",
        )


def called(
    job: PictureJob,
    part: PipelinePart,
    call: str,
    given: Sequence[Tensor],
    numbers: Mapping[str, int],
) -> list[Tensor]:
    """Return the outputs of a component's call; a VAE's decode may be one in parts."""
    if call != "decode" or not (job.vae_slicing or job.vae_tiling):
        return part.call(given, numbers)
    (latents,) = given
    slices = split(latents, 1, 0) if job.vae_slicing and latents.shape[0] > 1 else [latents]
    pictures = [_decoded(job, part, z, numbers) for z in slices]
    return [cat(pictures, 0) if len(pictures) > 1 else pictures[0]]


def _decoded(job: PictureJob, part: PipelinePart, z: Tensor, numbers: Mapping[str, int]) -> Tensor:
    keys = job.card["components"]["vae"]
    factor = 2 ** (len(keys["block_out_channels"]) - 1)
    tile = keys["sample_size"] // factor
    *_, height, width = z.shape
    if not job.vae_tiling or max(height, width) <= tile:
        return part.call([z], numbers)[0]
    step, limit = (
        int(tile * (1 - _OVERLAP)),
        keys["sample_size"] - int(keys["sample_size"] * _OVERLAP),
    )
    rows = [
        [
            part.call([_part_of(z, min(tile, height - i), min(tile, width - j))], numbers)[0]
            for j in range(0, width, step)
        ]
        for i in range(0, height, step)
    ]
    joined = [
        cat([_part_of(x, min(limit, x.shape[2]), min(limit, x.shape[3])) for x in row], 3)
        for row in rows
    ]
    return cat(joined, 2)


def _part_of(x: Tensor, height: int, width: int) -> Tensor:
    return narrowed(narrowed(x, 2, height), 3, width)
