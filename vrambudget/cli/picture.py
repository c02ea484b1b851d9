"""`vrambudget flux-dev ...`: what a pipeline of diffusers takes, to train or to generate with it.

    vrambudget flux-dev --train lora --rank 16 --resolution 1024 --checkpointing --gpu 24GB
    vrambudget flux-dev --base nf4 --offload model --gpu 12GB
    vrambudget wan2.1-14b --frames 81 --resolution 480x832 --gpu 80GB

diffusers' own code is traced, on any machine: torch (its CPU build will do), diffusers and
transformers must be installed. Exit code 0: it fits; 1: it does not; 2: it could not be traced.
"""

import argparse
import json

from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.output import add_output_options, chosen_format, emit, wants_colour, width
from vrambudget.config.gpus import find_gpu
from vrambudget.errors import VramBudgetError
from vrambudget.pictures.budget import PictureBudget, picture_budget
from vrambudget.pictures.cards import picture_name, picture_names
from vrambudget.pictures.job import picture_job
from vrambudget.report import render
from vrambudget.report.tabular import Column, Format, render_rows
from vrambudget.units import format_bytes


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "picture",
        usage="vrambudget PIPELINE [--train lora|full] [--resolution N|HxW] [--gpu GPU] ...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    names = ", ".join(picture_names())
    parser.add_argument("model", help=f"a pipeline's name or hub id: {names}")
    parser.add_argument("--gpu", metavar="GPU", help="a name ('RTX 3060') or a size (12GB)")
    parser.add_argument("--train", choices=("lora", "full"), help="train; default: generate")
    parser.add_argument("--rank", type=int, metavar="N", help="LoRA's rank (default: 16)")
    parser.add_argument("--resolution", metavar="N|HxW", help="pixels: 1024, or 480x832")
    parser.add_argument("--frames", type=int, metavar="N", help="frames of a video")
    parser.add_argument("--batch", type=int, metavar="N", help="pictures at once (default: 1)")
    parser.add_argument("--precision", choices=("bf16", "fp16", "fp32"), help="type of the weights")
    parser.add_argument("--base", choices=("16-bit", "nf4"), help="how frozen weights are kept")
    parser.add_argument(
        "--checkpointing", action="store_true", help="recompute activations in backward"
    )
    parser.add_argument("--optimizer", choices=("adamw", "adafactor", "sgd"), help="default: adamw")
    parser.add_argument(
        "--offload",
        choices=("none", "model", "sequential"),
        help="what goes to the host between its calls, as pipe.enable_..._cpu_offload does",
    )
    parser.add_argument("--torch", metavar="VERSION", help="whose kernels are counted")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the budget. Returns 0 if it fits or no GPU was named, else 1."""
    name = picture_name(args.model)
    if name is None:
        raise VramBudgetError(
            f"no pipeline is known as {args.model!r}", hint=", ".join(picture_names())
        )
    words = ("train", "rank", "batch", "precision", "base", "checkpointing", "optimizer", "offload")
    asked = {word: getattr(args, word) for word in words}
    job = picture_job(name, resolution=args.resolution, frames=args.frames, **asked)
    gpu = None if args.gpu is None else find_gpu(args.gpu)
    found = picture_budget(job, gpu, args.torch)
    emit(_text(found, args), args)
    return DONE if found.budget.fits else DOES_NOT_FIT


def _text(found: PictureBudget, args: argparse.Namespace) -> str:
    output = chosen_format(args)
    if output == "json":
        whole = {**json.loads(found.budget.to_json()), "phases": found.phases}
        return json.dumps(whole, indent=2, ensure_ascii=False)
    text = render(found.budget, output, colour=wants_colour(args), width=width(args))
    if output not in ("table", "markdown"):
        return text
    return f"{text}\n\n{_phases(found, output)}"


def _phases(found: PictureBudget, output: Format) -> str:
    """Return the peak of each phase; the largest is marked."""
    most = max(found.phases.values(), default=0)
    rows = [
        {"phase": name.replace("_", " "), "peak": nbytes, "note": "the peak" * (nbytes == most)}
        for name, nbytes in found.phases.items()
    ]
    columns = [
        Column("phase", "phase"),
        Column("peak", "allocated at most", "right", format_bytes),
        Column("note", ""),
    ]
    return render_rows(columns, rows, output)
