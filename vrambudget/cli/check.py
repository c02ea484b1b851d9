"""`vrambudget check FILE ...`: whether the jobs of these files still fit their GPUs; for CI.

A file is a job's own (job.toml, with its model and gpu) or a training tool's; --gpu is for files
that name none. Exit code 0: all fit; 1: one does not; 2: one could not be estimated.
"""

import argparse
from pathlib import Path
from typing import Any

from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.output import add_output_options, chosen_format, emit
from vrambudget.config.source import ModelWithFiles
from vrambudget.errors import VramBudgetError
from vrambudget.estimator import estimate_scenario
from vrambudget.report.tabular import Column, render_rows
from vrambudget.scenario import resolve
from vrambudget.units import format_bytes

_COLUMNS = [
    Column("file", "file"),
    Column("fits", "fits", "left", lambda fits: "yes" if fits else "NO"),
    Column("peak_bytes", "of the GPU", "right", format_bytes),
    Column("headroom_bytes", "left", "right", format_bytes),
    Column("gpu", "GPU"),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="files of jobs")
    parser.add_argument("--gpu", metavar="GPU", help="the GPU of files that name none")
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print a line for each file. Returns 1 if a job does not fit."""
    rows = [_row(file, args.gpu) for file in args.files]
    emit(render_rows(_COLUMNS, rows, chosen_format(args)), args)
    return DONE if all(row["fits"] for row in rows) else DOES_NOT_FIT


def _row(file: Path, gpu: str | None) -> dict[str, Any]:
    try:
        scenario = resolve(ModelWithFiles(None, (file,)))
        if scenario.gpu is None and gpu is not None:
            scenario = resolve(ModelWithFiles(None, (file,)), gpu=gpu)
        device = estimate_scenario(scenario).device
    except VramBudgetError as error:
        error.where = error.where or str(file)
        raise
    if device is None:
        raise VramBudgetError(
            "the file names no GPU", where=str(file), hint='add gpu = "24GB" to it, or --gpu 24GB'
        )
    return {
        "file": str(file),
        "fits": device.fits,
        "peak_bytes": device.peak_bytes,
        "headroom_bytes": device.headroom_bytes,
        "gpu": device.name,
    }
