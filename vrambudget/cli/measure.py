"""`vrambudget measure MODEL ...`: run a job on this machine's GPU and write a record of its memory.

Each job runs in its own process. Records go to stdout, or -o appends them to a file; one line for
each job goes to stderr. `--jobs FILE` runs every job of a file of records.
"""

import argparse
from pathlib import Path

from vrambudget.cli import DONE, FAILED
from vrambudget.cli.job_options import add_job_options, job_fields
from vrambudget.cli.records import append_record, told
from vrambudget.cli.streams import say
from vrambudget.config.record import read_records
from vrambudget.errors import VramBudgetError
from vrambudget.estimator import resolve
from vrambudget.measure.record import measure_job, record_of


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser("measure", description=__doc__, allow_abbrev=False)
    parser.add_argument("model", nargs="?", help="a model's name, a config.json, or a hub id")
    parser.add_argument(
        "--jobs", type=Path, metavar="FILE", help="run the jobs of FILE, one a line"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="append records to FILE")
    add_job_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print. Returns 2 if a job could not be measured."""
    if (args.model is None) == (args.jobs is None):
        raise VramBudgetError("name either a model or, with --jobs, a file of jobs")
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
        say(told(record))
        append_record(record, args.output)
    return FAILED if failed else DONE
