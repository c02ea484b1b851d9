"""`vrambudget flux-dev ...`: what a pipeline of diffusers takes, to train or to generate with it.

    vrambudget flux-dev --train lora --rank 16 --resolution 1024 --checkpointing --gpu 24GB
    vrambudget flux-dev --base nf4 --offload model --gpu 12GB
    vrambudget wan2.1-14b --frames 81 --resolution 480x832 --gpu 80GB
    vrambudget flux-dev --only decode --resolution 2048          one component alone
    vrambudget plan flux-dev --gpu 12GB                          how to train, how to generate there

diffusers' own code was recorded, so nothing has to be installed. Exit code 0: it fits; 1: it does
not; 2: it cannot be said.
"""

import argparse
import json
from dataclasses import fields
from typing import Any, get_args

from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.output import add_output_options, chosen_format, emit, wants_colour, width
from vrambudget.config.cards import picture_names
from vrambudget.config.gpus import find_gpu
from vrambudget.errors import VramBudgetError
from vrambudget.pictures.budget import PictureBudget, picture_budget
from vrambudget.pictures.cards import picture_name
from vrambudget.pictures.job import AdapterType, Base, Offload, Only, PictureJob, Train, picture_job
from vrambudget.report import render
from vrambudget.report.table import render_next
from vrambudget.report.tabular import Column, Format, render_rows
from vrambudget.units import format_bytes

_OF_SIZE = 4  # fields: name, height, width, frames
USAGE = "vrambudget PIPELINE [--train lora|full] [--resolution N|HxW] [--gpu GPU] ..."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_picture_options(parser)
    parser.add_argument("--gpu", metavar="GPU", help="a name ('RTX 3060') or a size (12GB)")
    add_output_options(parser)


def add_picture_options(parser: argparse.ArgumentParser) -> None:
    """Add what a generation or a training is made of."""
    names = ", ".join(picture_names())
    parser.add_argument("model", help=f"a pipeline's name or hub id: {names}")
    parser.add_argument(
        "--train", nargs="?", const="lora", choices=get_args(Train), help="train; default: generate"
    )
    parser.add_argument("--rank", type=int, metavar="N", help="LoRA's rank (default: 16)")
    parser.add_argument(
        "--adapters",
        choices=get_args(AdapterType),
        help="type of LoRA's weights (default: fp32); base: that of --precision",
    )
    parser.add_argument("--resolution", metavar="N|HxW", help="pixels: 1024, or 480x832")
    parser.add_argument("--frames", type=int, metavar="N", help="frames of a video")
    parser.add_argument("--batch", type=int, metavar="N", help="pictures at once (default: 1)")
    parser.add_argument(
        "--grad-accum", type=int, metavar="N", help="batches before a training's step (default: 1)"
    )
    parser.add_argument("--precision", choices=("bf16", "fp16", "fp32"), help="type of the weights")
    parser.add_argument(
        "--base",
        choices=get_args(Base),
        help="how the denoiser's frozen weights are kept (default: bf16, as --precision has it)",
    )
    parser.add_argument(
        "--checkpointing",
        nargs="?",
        const=True,
        type=lambda word: word not in {"none", "False"},
        metavar="full|none",
        help="recompute activations in backward",
    )
    parser.add_argument(
        "--swap", type=int, metavar="N", help="blocks that wait in main memory (blocks_to_swap)"
    )
    parser.add_argument(
        "--latents",
        choices=("cached", "encoded"),
        help="whether a training's images were encoded before, or the VAE does it in each step",
    )
    parser.add_argument(
        "--text",
        choices=("cached", "encoded", "kept"),
        help="a training's text: encoded before, or on the GPU beside all else, and kept there",
    )
    parser.add_argument("--optimizer", metavar="NAME", help="of a training (default: adamw)")
    parser.add_argument(
        "--saves-in", choices=("fp32",), help="what the denoiser is cast to after the last step"
    )
    parser.add_argument(
        "--offload",
        choices=get_args(Offload),
        help="what goes to the host between its calls, as pipe.enable_..._cpu_offload does",
    )
    for option, what in {"--vae-slicing": "picture by picture", "--vae-tiling": "in tiles"}.items():
        parser.add_argument(option, action="store_true", help=f"the VAE decodes {what}")
    parser.add_argument("--only", choices=get_args(Only), help="one phase of a generation alone")
    parser.add_argument(
        "--targets",
        metavar="A,B",
        help="modules that take LoRA's adapters (default: those of diffusers' script), or blocks:"
        " all linear layers of blocks",
    )
    for word in ("--noted", "--uncounted"):  # of a trainer's file
        parser.add_argument(word, action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--torch", metavar="VERSION", help="the PyTorch whose kernels run")


def job_of(args: argparse.Namespace) -> PictureJob:
    """Return the job that options describe. Raises VramBudgetError."""
    name = picture_name(args.model)
    if name is None:
        raise VramBudgetError(
            f"no pipeline is known as {args.model!r}", hint=", ".join(picture_names())
        )
    asked = {field.name: getattr(args, field.name) for field in fields(PictureJob)[_OF_SIZE:]}
    return picture_job(name, resolution=args.resolution, frames=args.frames, **asked)


def run(args: argparse.Namespace) -> int:
    """Print the budget. Returns 0 if it fits or no GPU was named, else 1."""
    gpu = None if args.gpu is None else find_gpu(args.gpu)
    found = picture_budget(job_of(args), gpu, args.torch, args.noted, args.uncounted)
    emit(_text(found, args), args)
    return DOES_NOT_FIT if found.budget.fits is False else DONE


def _text(found: PictureBudget, args: argparse.Namespace) -> str:
    output = chosen_format(args)
    if output == "json":
        whole = {**json.loads(found.budget.to_json()), "phases": found.phases}
        return json.dumps(whole, indent=2, ensure_ascii=False)
    columns = width(args)
    text = render(found.budget, output, colour=wants_colour(args), width=columns)
    if output not in ("table", "markdown"):
        return text
    return f"{text}\n\n{_phases(found, output)}\n\n{render_next(_next(args), width=columns)}"


def _next(args: argparse.Namespace) -> str:
    size = f" --gpu {args.gpu}" if args.gpu else " --gpu 12GB"
    return f"`vrambudget plan {args.model}{size}` says how to train and to generate there"


def _phases(found: PictureBudget, output: Format) -> str:
    """Return the peak of each phase; the largest is marked."""
    phases = found.phases
    most = max(phases.values(), default=0)
    rows: list[dict[str, Any]] = [
        {"phase": name.replace("_", " "), "peak": nbytes, "note": "the peak" * (nbytes == most)}
        for name, nbytes in phases.items()
    ]
    columns = [
        Column("phase", "phase"),
        Column("peak", "allocated at most", "right", format_bytes),
        Column("note", ""),
    ]
    return render_rows(columns, rows, output)
