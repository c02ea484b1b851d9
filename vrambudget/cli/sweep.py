"""`vrambudget sweep MODEL --batch 1:64:x2 --gpu GPU GPU`: every combination of many settings.

An option of the job may have several values: 8,16,32 or, for whole numbers, a range: 8:64 (every
value), 8:64:8 (steps of 8), 1:64:x2 (doubling). `--by requested` answers grids of many thousands
of points (batch, block) from requested bytes alone.
"""

import argparse
import io
from pathlib import Path

from vrambudget.cli import DONE
from vrambudget.cli.job_options import add_job_options, job_fields
from vrambudget.cli.output import add_output_options, chosen_format, emit
from vrambudget.cli.ranges import read_values
from vrambudget.errors import VramBudgetError
from vrambudget.files import write_file
from vrambudget.planning.sweep import Record, sweep
from vrambudget.report.sweep import render_sweep

_PARQUET = ".parquet"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", nargs="?", help="a model's name, a config.json, or a hub id")
    parser.add_argument("--gpu", nargs="+", metavar="GPU", help="one GPU or several")
    parser.add_argument(
        "--by",
        choices=["replay", "requested"],
        default="replay",
        help="replay the allocator at each point, or add up what tensors request (default: replay)",
    )
    add_job_options(parser, read_values)
    add_output_options(parser, writes="write to FILE; .parquet needs pyarrow")


def run(args: argparse.Namespace) -> int:
    """Print the records."""
    fields = job_fields(args)
    if isinstance(fields.get("lora_targets"), list):  # names of one setting, not settings
        fields["lora_targets"] = ",".join(fields["lora_targets"])
    gpus = [name for word in args.gpu or () for name in word.split(",")] or None
    records = sweep(args.model, gpu=gpus, by=args.by, **fields)
    if args.output and args.output.suffix.lower() == _PARQUET:
        _write_parquet(records, args.output)
        return DONE
    emit(render_sweep(records, chosen_format(args)), args)
    return DONE


def _write_parquet(records: list[Record], path: Path) -> None:
    try:
        from pyarrow import Table, parquet  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise VramBudgetError(
            "Parquet needs pyarrow",
            where=str(path),
            hint="pip install 'vrambudget[sweep]', or write .csv or .json",
        ) from error
    buffer = io.BytesIO()
    parquet.write_table(Table.from_pylist(records), buffer)
    write_file(path, buffer.getvalue())
