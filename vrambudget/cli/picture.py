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
from typing import Any, get_args, get_type_hints

from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.output import add_output_options, chosen_format, emit, wants_colour, width
from vrambudget.config.cards import picture_names
from vrambudget.config.gpus import find_gpu
from vrambudget.errors import VramBudgetError
from vrambudget.files import toml_beside
from vrambudget.pictures.budget import PictureBudget, picture_budget
from vrambudget.pictures.cards import picture_name
from vrambudget.pictures.job import PictureJob, picture_job
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
    hints = get_type_hints(PictureJob)
    for name, shown in toml_beside(__file__, "picture.toml").items():
        parser.add_argument(f"--{name}", **_takes(hints.get(name.replace("-", "_"))), **shown)
    parser.add_argument(
        "--checkpointing",
        nargs="?",
        const=True,
        type=lambda word: word not in {"none", "False"},
        metavar="full|none",
        help="recompute activations in backward",
    )
    for word in ("--noted", "--uncounted"):  # of a trainer's file
        parser.add_argument(word, action="append", default=[], help=argparse.SUPPRESS)


def _takes(hint: Any) -> dict[str, Any]:
    """Return what an option of this type takes, for argparse."""
    words = [w for part in (hint, *get_args(hint)) for w in get_args(part) if isinstance(w, str)]
    if hint is bool:
        return {"action": "store_true"}
    return {"choices": words} if words else {"type": int} if hint is int else {}


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
    plan = f"`vrambudget plan {args.model} --gpu {args.gpu or '12GB'}`"
    further = render_next(f"{plan} says how to train and to generate there", width=columns)
    return f"{text}\n\n{_phases(found, output)}\n\n{further}"


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
