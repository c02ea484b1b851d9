"""`vrambudget gpus`: the GPUs that are known by name, and the source of each number."""

import argparse
from dataclasses import asdict
from functools import partial

from vrambudget.cli import DONE
from vrambudget.cli.output import add_output_options, chosen_format, emit
from vrambudget.config.gpus import all_gpus
from vrambudget.config.settings import show
from vrambudget.errors import VramBudgetError
from vrambudget.report.tabular import Column, render_rows
from vrambudget.units import format_bytes

_GIB = partial(format_bytes, unit="GiB")
_COLUMNS = [
    Column("key", "--gpu"),
    Column("sold_gb", "sold as", "right", lambda gb: f"{gb} GB"),
    Column("capacity_bytes", "capacity", "right", _GIB),
    Column("capacity_kind", "which is"),
    Column("context_bytes", "context", "right", _GIB),
    Column("context_kind", "which is"),
    Column("compute_capability", "sm", "right", lambda cc: "{}.{}".format(*cc)),
    Column("name", "the driver's name"),
]
_MORE_KEYS = ("multiprocessors", "l2_bytes", "source", "context_source", "context_range")
_MORE = [Column(key, key) for key in _MORE_KEYS]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("part", nargs="?", default="", help="only those with this in their name")
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table of GPUs; JSON and CSV give the source of each number too."""
    output = chosen_format(args)
    columns = _COLUMNS + (_MORE if output in ("json", "csv") else [])
    part = args.part.lower().replace(" ", "-")
    gpus = [gpu for gpu in all_gpus() if part in f"{gpu.key} {gpu.name.lower()}"]
    if not gpus:
        raise VramBudgetError(f"no GPU has {show(args.part)} in its name")
    emit(render_rows(columns, [asdict(gpu) for gpu in gpus], output), args)
    return DONE
