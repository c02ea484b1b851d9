"""`vrambudget rehearse --gpu GPU -- python train.py ...`: any PyTorch script on a virtual GPU.

    vrambudget rehearse --gpu "RTX 3060" -- python train.py --batch_size=64
    vrambudget rehearse --gpu "RTX 3060" gpt2 --batch 8
    vrambudget rehearse --gpu A100 --steps 3 -- torchrun --nproc-per-node 8 train.py
    vrambudget rehearse --gpu 24GB --steps 2 --batch-from 1:64 -- python train.py --bs={batch}
    vrambudget rehearse --jobs JOBS.jsonl -o RECORDS.jsonl

What follows `--` is the command, unmodified; --steps N stops it after N iterations. A model's job,
of any class of transformers, is built with random weights. Both need a CUDA build of PyTorch, but
no GPU; for jobs, VRAMBUDGET_PYTHON names the Python that has one. Of torchrun's ranks, or of
--ranks N, one runs: the first, or --rank R. --batch-from finds the largest batch that fits.
--values and --routing say what is read of numbers that nobody computes.

A script's own output is unchanged; the report follows it on stdout, and progress goes to stderr.
The exit code is the script's own, or 2 if it could not be rehearsed; for a job, 0: it ran; 1: it
ran out of memory; for a search, 1: no batch fits. Records go to stdout, or -o appends them.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vrambudget.cli import DOES_NOT_FIT, DONE, FAILED
from vrambudget.cli.job_options import add_job_options, job_fields
from vrambudget.cli.output import emit
from vrambudget.cli.parser import Parser
from vrambudget.cli.records import append_record, summary
from vrambudget.cli.streams import say
from vrambudget.config.fields.ranks import Ranks
from vrambudget.config.gpus import Gpu, find_gpu, nodes_of_gpus
from vrambudget.config.record import read_records, with_loop_defaults
from vrambudget.errors import VramBudgetError
from vrambudget.measure.record import as_record
from vrambudget.rehearse.events import rehearse_job
from vrambudget.rehearse.jobs import rehearse_report
from vrambudget.rehearse.largest import largest_batch, read_bounds, render_search
from vrambudget.rehearse.models import job_of
from vrambudget.rehearse.options import RehearsalOptions
from vrambudget.rehearse.page import page
from vrambudget.rehearse.record import Rehearsal
from vrambudget.rehearse.report import render
from vrambudget.rehearse.run import command_of, rehearse_command

_EXAMPLE = 'a command comes after --: vrambudget rehearse --gpu "RTX 3060" -- python train.py'
USAGE = (
    "vrambudget rehearse --gpu GPU [options] -- COMMAND ...\n"
    "       vrambudget rehearse --gpu GPU MODEL [--batch N] [--block N] ...\n"
    "       vrambudget rehearse --jobs FILE [--gpu GPU] [-o FILE]"
)
_SUFFIXES = {"": "table", ".txt": "table", ".json": "json", ".html": "page"}
_SHOWN: dict[str, Callable[[Rehearsal], str]] = {
    "table": render,
    "json": lambda result: json.dumps(result.to_dict(), indent=2),
    "page": page,
}


class _Parser(Parser):
    """Leaves what follows a lone `--` alone: `command`, None where there is no `--`."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        words = list(args or ())
        cut = words.index("--") if "--" in words else len(words)
        known, extra = super().parse_known_args(words[:cut], namespace)
        known.command = words[cut + 1 :] if cut < len(words) else None
        if extra and not extra[0].startswith("-"):
            raise VramBudgetError(f"unexpected argument {extra[0]!r}", hint=_EXAMPLE)
        return known, extra


PARSER = _Parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", nargs="?", help="a model's name, a config.json, or a hub id")
    parser.add_argument(
        "--jobs", type=Path, metavar="FILE", help="rehearse the jobs of FILE, one a line"
    )
    parser.add_argument("--gpu", metavar="GPU", help="a name or a size: 'RTX 3060', 80GB")
    parser.add_argument("--timeout", type=float, metavar="X", help="stop after X seconds")
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="run the command as one of N (DDP, FSDP)"
    )
    parser.add_argument("--rank", type=int, metavar="R", default=0, help="which: 0 to N - 1")
    parser.add_argument(
        "--batch-from", metavar="LOW:HIGH", help="find the largest {batch} of the command"
    )
    parser.add_argument(
        "--values",
        metavar="V",
        default="zeros",
        help="what a script reads of floating-point numbers: zeros, ones, random[:SEED]",
    )
    parser.add_argument("--format", choices=("table", "json"))
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write to FILE; .html draws memory over the steps, .json has all in bytes",
    )
    parser.add_argument(
        "--snapshot", type=Path, metavar="FILE", help="write the history for pytorch.org/memory_viz"
    )
    parser.add_argument(
        "--any-torch", action="store_true", help="allow a version of PyTorch that was not tried"
    )
    add_job_options(parser, without=Ranks)


def run(args: argparse.Namespace) -> int:
    """Rehearse, print, and return the exit code. Raises VramBudgetError."""
    given = [args.command is not None, args.model is not None, args.jobs is not None]
    if sum(given) != 1:
        raise VramBudgetError("name one of: a command, a model, --jobs", hint=_EXAMPLE)
    if args.jobs is not None:
        return _records(args)
    if args.batch_from is not None:
        return _search(args)
    output = _format(args)
    result = _script(args, args.command) if args.command is not None else _job(args)
    emit(_SHOWN[output](result), args)
    return result.exit_code


def _format(args: argparse.Namespace) -> str:
    """Return the requested format, or that of the file's suffix."""
    suffix = args.output.suffix.lower() if args.output else ""
    if suffix == ".html" and args.format:
        raise VramBudgetError(
            f"--format {args.format} cannot be combined with the page {args.output}",
            hint="leave out --format, or give -o another suffix",
        )
    if args.format:
        return str(args.format)
    if suffix not in _SUFFIXES:
        raise VramBudgetError(
            f"no rehearsal's report has the suffix {suffix!r}",
            where=str(args.output),
            hint=f"use {', '.join(filter(None, _SUFFIXES))}, or say --format",
        )
    return _SUFFIXES[suffix]


def _search(args: argparse.Namespace) -> int:
    """Rehearse until the largest batch is found. Returns 1 where none fits."""
    bounds = read_bounds(args.batch_from)
    output = _format(args)
    if args.command is None or args.snapshot is not None or output == "page":
        raise VramBudgetError(
            "--batch-from is of a command, without --snapshot or a page", hint=_EXAMPLE
        )

    def tried(command: Sequence[str]) -> Rehearsal:
        _say(" ".join(command))
        return _script(args, command)

    search = largest_batch(args.command, bounds, tried, os.environ)
    gpu = _gpu(args.gpu).name
    found = {"gpu": gpu, **search.to_dict()}
    emit(json.dumps(found, indent=2) if output == "json" else render_search(search, gpu), args)
    return DOES_NOT_FIT if search.largest is None else DONE


def _script(args: argparse.Namespace, command: Sequence[str]) -> Rehearsal:
    given = _fields(args)
    steps, routing = given.pop("steps", None), given.pop("routing", None)
    if given:
        option = "--" + next(iter(given)).replace("_", "-")
        raise VramBudgetError(
            f"{option} is an option for a model's job; a command has its own options",
            hint="write the command's options after its name",
        )
    options = _options(args, steps, routing)
    return rehearse_command(command_of(command), _gpu(args.gpu), options)


def _options(args: argparse.Namespace, steps: int | None, routing: str | None) -> RehearsalOptions:
    return RehearsalOptions(
        steps,
        args.timeout,
        args.snapshot,
        args.any_torch,
        ranks=args.ranks,
        rank=args.rank,
        values=args.values,
        routing=routing,
        say=_say,
        curve=_format(args) == "page",
    )


def _fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return a job's fields; --ranks and --rank are of the rehearsal here."""
    return {k: v for k, v in job_fields(args).items() if k not in Ranks.model_fields}


def _job(args: argparse.Namespace) -> Rehearsal:
    if args.ranks is not None or args.rank:
        raise VramBudgetError(
            "--ranks needs a command: a model's job runs on one GPU", hint=_EXAMPLE
        )
    if str(args.model).endswith(".py"):
        raise VramBudgetError(f"{args.model} is a script, not a model", hint=_EXAMPLE)
    gpu, fields = _gpu(args.gpu), _fields(args)
    job = job_of(args.model, fields)
    options = _options(args, None, fields.get("routing"))
    return rehearse_report(job, gpu=gpu, options=options)


def _gpu(name: Any) -> Gpu:
    if name is None:
        raise VramBudgetError("name the GPU", hint='--gpu "RTX 3060", or --gpu 12GB')
    if isinstance(name, str) and (named := nodes_of_gpus(name))[:2] != (1, 1):
        hint = "vrambudget rehearse --gpu {2} -- torchrun --nproc-per-node {1} train.py"
        raise VramBudgetError(f"{name}: one rank is rehearsed", hint=hint.format(*named))
    return find_gpu(name)


def _records(args: argparse.Namespace) -> int:
    """Rehearse every line of a file. Returns 2 where a job could not be rehearsed."""
    if given := [
        *_fields(args),
        *(k for k in ("timeout", "snapshot", "ranks") if vars(args)[k]),
    ]:
        raise VramBudgetError(f"--{given[0].replace('_', '-')} cannot be combined with --jobs")
    failed = 0
    for job in map(with_loop_defaults, read_records(args.jobs, measured=False)):
        try:
            gpu = _gpu(args.gpu or job.get("card"))
            found = rehearse_job(job, gpu=gpu, events=False, any_torch=args.any_torch)
        except VramBudgetError as error:
            failed += 1
            _say(f"{job.get('id', 'no id')}: {error.render()}")
            continue
        record = as_record(
            job,
            measured=found.measured,
            card=gpu.key or f"{gpu.capacity_bytes}B",
            source="virtual",
            versions=found.versions,
            machine={"capacity_bytes": gpu.capacity_bytes, "outside_bytes": gpu.context_bytes},
        )
        _say(summary(record))
        append_record(record, args.output)
    return FAILED if failed else DONE


def _say(line: str) -> None:
    say(f"vrambudget: {line}")
