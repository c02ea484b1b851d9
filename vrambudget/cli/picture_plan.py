"""`vrambudget plan flux-dev --gpu 12GB`: how to train a pipeline there, and how to generate.

Recipes of each goal stand in the order of what they give up, up to the first that fits.
Exit code 0: something fits; 1: nothing does.
"""

import argparse
from dataclasses import asdict

from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.fit import RETURNED
from vrambudget.cli.output import add_output_options, chosen_format, emit
from vrambudget.config.gpus import find_gpu
from vrambudget.escaping import json_text
from vrambudget.pictures.cards import picture_name
from vrambudget.planning.pictures import recipes, title
from vrambudget.report.tabular import Column, render_rows
from vrambudget.units import format_bytes

_COLUMNS = [
    Column("goal", "goal"),
    Column("fits", "fits", "left", lambda fits: "yes" if fits else "no"),
    Column("peak_bytes", "at its peak", "right", format_bytes),
    Column("phase", "peak in", "left", lambda phase: phase.replace("_", " ")),
    Column("gives_up", "gives up"),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", help="a pipeline's name or hub id")
    parser.add_argument("--gpu", required=True, metavar="GPU", help="a name or a size (12GB)")
    parser.add_argument("--resolution", metavar="N|HxW", help="pixels: 1024, or 480x832")
    parser.add_argument("--frames", type=int, metavar="N", help="frames of a video")
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the recipes. Returns 1 if none fits."""
    name = picture_name(args.model) or args.model
    gpu = find_gpu(args.gpu)
    found = recipes(name, gpu, word=args.gpu, resolution=args.resolution, frames=args.frames)
    output = chosen_format(args)
    if output == "json":
        emit(json_text([asdict(one) for one in found]), args)
    else:
        fitting = [one.command for one in found if one.fits]
        head = f"{title(name)} on {gpu.name}"
        table = render_rows(_COLUMNS, [asdict(one) for one in found], output)
        if any(one.fits and one.peak_bytes > gpu.capacity_bytes for one in found):
            table += f"\n\nat its peak: {RETURNED}"
        commands = "\n".join(f"  {command}" for command in fitting or [found[-1].command])
        emit(f"{head}\n\n{table}\n\n{'use' if fitting else 'the least'}:\n{commands}", args)
    return DONE if any(one.fits for one in found) else DOES_NOT_FIT
