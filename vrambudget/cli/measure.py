"""`vrambudget measure ...`: run jobs on this machine's GPU and write records of their memory.

    vrambudget measure MODEL [--batch N] ...   one job
    vrambudget measure --jobs FILE             every job of a file of records
    vrambudget measure --suite quick           about 25 jobs that are sized for this GPU
    vrambudget measure --context               what the driver takes beside PyTorch

Each job runs in its own process. Records go to stdout, or -o appends them to a file; one line for
each job goes to stderr. A suite shows estimate and measurement of each job at once and writes its
records to a file; interrupted, or after --minutes, it goes on where it was. Out of memory is a
result.
"""

import argparse
import json
import math
from pathlib import Path
from typing import get_args

from vrambudget.cli import DONE, FAILED
from vrambudget.cli.job_options import add_job_options, job_fields
from vrambudget.cli.records import append_record, summary
from vrambudget.cli.streams import say
from vrambudget.config.record import read_records
from vrambudget.errors import VramBudgetError
from vrambudget.measure.record import measure_context, measure_job, record_of
from vrambudget.measure.suite import SuiteName
from vrambudget.scenario import resolve
from vrambudget.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", nargs="?", help="a model's name, a config.json, or a hub id")
    parser.add_argument(
        "--jobs", type=Path, metavar="FILE", help="run the jobs of FILE, one a line"
    )
    parser.add_argument(
        "--suite",
        choices=get_args(SuiteName),
        help="jobs that are sized for this GPU: about 25, or those of every family and method",
    )
    parser.add_argument(
        "--context",
        action="store_true",
        help="what the driver takes: at the start, after a matrix product, after cuDNN",
    )
    parser.add_argument(
        "--minutes", type=float, metavar="X", help="end the suite by then; quick: 10, full: none"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="append records to FILE")
    add_job_options(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print. Returns 2 if a job could not be measured."""
    asked = [args.model is not None, args.jobs is not None, args.suite is not None, args.context]
    if sum(asked) != 1:
        raise VramBudgetError("name either a model or one of --jobs FILE, --suite, --context")
    if args.minutes is not None and (args.suite is None or not 0 < args.minutes < math.inf):
        raise VramBudgetError("--minutes is of a --suite, and more than 0")
    if args.suite is not None or args.context:
        if given := job_fields(args):
            option = "--" + next(iter(given)).replace("_", "-")
            raise VramBudgetError(f"{option} cannot be combined with --suite or --context")
        return _context(args.output) if args.context else _suite(args)
    if args.jobs is not None:
        jobs = read_records(args.jobs, measured=False)
    else:
        jobs = [record_of(resolve(args.model, **job_fields(args)))]
    failed = 0
    for job in jobs:
        try:
            record = measure_job(job)
        except VramBudgetError as error:
            failed += 1
            say(error.render())
            continue
        say(summary(record))
        append_record(record, args.output)
    return FAILED if failed else DONE


def _suite(args: argparse.Namespace) -> int:
    from vrambudget.cli.measure_suite import run_suite  # noqa: PLC0415 - what it needs is its own

    return run_suite(args.suite, args.output, args.minutes)


def _context(output: Path | None) -> int:
    record = measure_context()
    say(f"{record['card']}: what the driver takes beside PyTorch's allocator")
    for step, read in record["context"].items():
        counters = ", ".join(
            f"{'unknown' if read[how] is None else format_bytes(read[how])} by {how}"
            for how in ("mem_get_info", "nvml")
        )
        say(f"  {step}: {counters}")
    say(f"  {json.dumps(record['versions'])}")
    append_record(record, output)
    return DONE
