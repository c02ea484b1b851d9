"""`vrambudget MODEL ...`: what a job takes at its peak, and whether it fits on a GPU."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from vrambudget.budget import Budget
from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.job_options import add_job_options, job_fields
from vrambudget.cli.output import (
    add_output_options,
    chosen_format,
    emit,
    progress_of,
    wants_colour,
    width,
    working_on,
)
from vrambudget.cli.streams import say
from vrambudget.config.gpus import on_nodes
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.escaping import json_text
from vrambudget.estimator import Traced, trace_job
from vrambudget.report import render
from vrambudget.report.pictures import SUFFIXES, is_picture, save
from vrambudget.report.table import render_next
from vrambudget.scenario import Scenario, resolve
from vrambudget.units import format_bytes

if TYPE_CHECKING:
    from vrambudget.planning.advised import Advice

USAGE = "vrambudget MODEL [--batch N] [--block N] [--gpu GPU] ..."
_FRAGMENTED = 5  # a fifth of what is reserved holds nothing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "model",
        nargs="?",
        help="a name that `vrambudget models` lists, a config.json, a hub id org/name, or a file"
        " that says how a model is trained",
    )
    parser.add_argument(
        "--gpu",
        metavar="GPU",
        help="a name ('RTX 3060'), a size as sold (12GB), an exact size (11.69GiB), or auto",
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="machines, of so many GPUs each")
    parser.add_argument(
        "--advise", action="store_true", help="list what would save memory, even if the job fits"
    )
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)  # the default mode
    parser.add_argument(
        "--inputs", metavar="NxCxHxW", help="shape of what 'module:factory' is called with"
    )
    add_job_options(parser)
    add_output_options(
        parser,
        writes="write to FILE; .html, .png, .svg, .pdf and .pickle draw memory over the steps",
    )


def run(args: argparse.Namespace) -> int:
    """Print the budget. Returns 0 if it fits or no GPU was named, else 1."""
    scenario = _scenario(args)
    draws = is_picture(args.output)
    if draws and args.format:
        raise VramBudgetError(
            f"--format {args.format} cannot be combined with the picture {args.output}",
            hint="leave out --format, or give -o another suffix",
        )
    with working_on("tracing the job"):
        traced = trace_job(scenario)
    if draws:
        return _draw(traced, args)
    emit(_parts(traced, args), args)
    return DOES_NOT_FIT if traced.budget.fits is False else DONE


def _scenario(args: argparse.Namespace) -> Scenario:
    gpu, fields = on_nodes(args.gpu, args.nodes), job_fields(args)
    if args.inputs is None:
        return resolve(args.model, gpu=gpu, **fields)
    from vrambudget.cli.factory import scenario_of  # noqa: PLC0415 - few name a factory

    return scenario_of(args.model or "", args.inputs, gpu=gpu, **fields)


def _parts(traced: Traced, args: argparse.Namespace) -> Iterator[str]:
    """Yield the result in parts, what is known first."""
    budget, output = traced.budget, chosen_format(args, pictures=SUFFIXES)
    if output in ("table", "markdown"):
        yield from _report(traced, args)
    elif output == "json" and args.advise:
        advised = {**json.loads(budget.to_json()), "advice": asdict(_advice(traced))}
        yield json_text(advised)
    else:
        yield render(budget, output)


def _report(traced: Traced, args: argparse.Namespace) -> Iterator[str]:
    """Yield what people read: the budget, then what to do next."""
    scenario, budget = traced.scenario, traced.budget
    output = chosen_format(args)
    columns = width(args)
    yield render(budget, output, colour=wants_colour(args), width=columns)
    fits = budget.fits is not False
    if fits or scenario.job.compile:
        yield f"\n{render_next(_next_step(traced), width=columns)}"
    if (fits or scenario.job.compile) and not args.advise:
        return
    from vrambudget.report.advice import next_step, render_advice  # noqa: PLC0415 - needed last

    advice = _advice(traced)
    if not fits:
        yield f"\n{render_next(next_step(advice), width=columns)}"
    yield f"\n{render_advice(advice, markdown=output == 'markdown')}"


def _advice(traced: Traced) -> "Advice":
    """Return what would help; on a terminal a line says that it is being worked out."""
    from vrambudget.planning.advice import advise_on  # noqa: PLC0415 - needed last

    with progress_of("working out what would help") as progress:
        return advise_on(traced, progress, forks=True)


def _draw(traced: Traced, args: argparse.Namespace) -> int:
    save(traced, args.output)
    say(f"wrote {args.output}")
    return DOES_NOT_FIT if traced.budget.fits is False else DONE


def _next_step(traced: Traced) -> str:
    """Return the next thing to try with a job that fits."""
    scenario, budget = traced.scenario, traced.budget
    if budget.device is None:
        return "name a GPU, for example --gpu 12GB, to see whether it fits"
    if scenario.job.mode == "generate":
        return _next_of_generation(scenario, budget)
    if scenario.job.compile:  # each change is compiled, which takes a while
        other = "" if budget.fits is not False else ", `--advise` what would help"
        return f"`vrambudget fit` with the same options finds the largest batch{other}"
    from vrambudget.planning.fit import largest_batch  # noqa: PLC0415 - needed last
    from vrambudget.planning.variants import as_traced  # noqa: PLC0415 - needed last

    assert scenario.gpu is not None  # noqa: S101 - a GPU was named
    spare = scenario.gpu.spare_bytes
    try:
        batch = largest_batch(as_traced(traced), margin_bytes=spare)
    except NotModelledError as error:  # another batch may take another way through the code
        return f"the largest batch that fits is not known: {error}"
    free = (
        f" with {format_bytes(spare)} left free, should the CUDA context be larger" if spare else ""
    )
    if not batch:
        return f"no batch fits{free}: `--advise` lists what would help"
    option = "batch" if batch == scenario.job.batch else "--batch"
    return f"{option} {batch} is the largest that fits{free}"


def _next_of_generation(scenario: Scenario, budget: Budget) -> str:
    """Return what to try with a generation that fits, without running it at other sizes."""
    peak = budget.peak
    cached = peak.reserved_bytes - peak.allocated_bytes
    if cached * _FRAGMENTED > peak.reserved_bytes and not scenario.job.expandable_segments:
        share = round(100 * cached / peak.reserved_bytes)
        return (
            f"--expandable-segments: {share} % of what is reserved lies in holes, which a cache"
            " that grows by a token in each step leaves behind; --cache static leaves none, either"
        )
    if budget.full_at is not None and not budget.full_at.is_exact:
        return "`vrambudget fit --longest-new` with the same options finds when the GPU is full"
    return "`vrambudget fit` with the same options finds the largest batch, or the longest prompt"
