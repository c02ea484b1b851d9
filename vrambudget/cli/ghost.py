"""`vrambudget ghost MODEL DIR`: a folder at full size whose weights take no disk and no memory.

An unmodified `from_pretrained` reads it, so that a script of a large pipeline or model is rehearsed
on a small machine, without a download. Weights read as zeros.
"""

import argparse
from pathlib import Path
from typing import get_args

from vrambudget.cli import DONE
from vrambudget.cli.record import NEEDED
from vrambudget.cli.streams import put
from vrambudget.config.source import find_model
from vrambudget.errors import VramBudgetError
from vrambudget.pictures.cards import card, picture_name
from vrambudget.pictures.job import Precision
from vrambudget.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", help="a pipeline's or a model's name, or a config.json")
    parser.add_argument("folder", type=Path, help="where it is written: a new or empty folder")
    said = "type of all weights; a script that loads them in another one casts them in memory"
    parser.add_argument("--precision", choices=get_args(Precision), help=said)


def run(args: argparse.Namespace) -> int:
    """Write the folder."""
    folder = args.folder
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        message = "it is there, and holds something already"
        raise VramBudgetError(message, where=str(folder), hint="name a new folder")
    name = picture_name(args.model)
    own = card(name) if name else find_model(args.model)
    try:
        from vrambudget.recording import ghost  # noqa: PLC0415 - it imports torch
    except ImportError as error:
        raise VramBudgetError(f"a folder is made by the libraries: {error}", hint=NEEDED) from None
    for part, size in ghost.write(own, folder, args.precision).items():
        put(f"{folder / part}: {format_bytes(size)} of weights, which take no disk\n")
    return DONE
