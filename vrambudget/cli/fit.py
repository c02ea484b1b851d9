"""`vrambudget fit MODEL --gpu GPU`: the largest batch, longest block or answer that fits."""

import argparse
import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.job_options import add_job_options, add_options, job_fields
from vrambudget.cli.output import add_output_options, chosen_format, emit, working_on
from vrambudget.config.gpus import count_of_gpus, find_gpu
from vrambudget.config.job import Job
from vrambudget.config.source import find_model
from vrambudget.errors import VramBudgetError
from vrambudget.integrations.server import serve
from vrambudget.planning.choices import gpu_word, model_word
from vrambudget.planning.fit import Fit, What, fit, margin_bytes
from vrambudget.report.tabular import Column, render_rows
from vrambudget.scenario import Scenario, resolve
from vrambudget.serving.options import ServeOptions
from vrambudget.training.inputs import row_text
from vrambudget.units import format_bytes

_COLUMNS = [
    Column("batch", "batch", "right"),
    Column("block", "block", "right"),
    Column("peak_allocated_bytes", "allocated", "right", format_bytes),
    Column("peak_reserved_bytes", "reserved", "right", format_bytes),
    Column("fits", "fits", "left", lambda fits: "yes" if fits else "no"),
]

_OF_AN_ANSWER = [Column(name, name, "right") for name in ("batch", "prompt", "new", "new_at_most")]
RETURNED = "on a GPU without limit; on this one PyTorch returns its cache, and it fits"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", nargs="?", help="a model's name, a config.json, or a hub id")
    parser.add_argument(
        "--gpu",
        required=True,
        metavar="GPU",
        help="a name ('RTX 3060'), a size as sold (12GB), an exact size (11.69GiB), or auto",
    )
    parser.add_argument(
        "--margin",
        metavar="SIZE",
        help="memory to leave free (default: the published range of the CUDA context); a desktop"
        " takes 0.3 to 1.6 GB, Windows about 1 GiB",
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--longest-block", action="store_true", help="find the longest block at --batch instead"
    )
    kinds.add_argument(
        "--longest-new",
        action="store_true",
        help="find how many new tokens fit, with --mode generate",
    )
    kinds.add_argument(
        "--longest-model-len",
        action="store_true",
        help="find the longest request that a server starts with, with the server's options",
    )
    add_job_options(parser)
    add_options(parser, ServeOptions, without=Job.model_fields)
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print what fits, and the sizes tried around it. Returns 1 if nothing fits."""
    if args.longest_model_len:
        return _request(args)
    if served := _server_options(args):
        raise VramBudgetError(
            f"--{next(iter(served)).replace('_', '-')} is a server's option",
            hint="add --longest-model-len, or ask `vrambudget serve MODEL --gpu GPU`",
        )
    scenario = resolve(args.model, gpu=args.gpu, **job_fields(args))
    assert scenario.gpu is not None  # noqa: S101 - the option is required
    if args.longest_new:
        return _answer(scenario, args)
    what: What = "block" if args.longest_block else "batch"
    margin = margin_bytes(args.margin, scenario.gpu)
    with working_on(f"looking for the largest {what}"):
        found = fit(scenario, what=what, margin_bytes=margin)
    output = chosen_format(args)
    if output == "json":
        text = json.dumps(asdict(found), indent=2)
    else:
        says_row = row_text(scenario.config_of_job, scenario.job) and what == "batch"
        columns = [each for each in _COLUMNS if not (says_row and each.key == "block")]
        text = render_rows(columns, [asdict(point) for point in found.curve], output)
        if output != "csv":
            verdict = _verdict(found, what, scenario, margin)
            text = "\n\n".join([verdict, text, *_next(found, what, scenario)])
    emit(text, args)
    return DONE if getattr(found, what) else DOES_NOT_FIT


def _next(found: Fit, what: What, scenario: Scenario) -> Iterator[str]:
    """Yield what a fit above the capacity means, and a plan to try where nothing fits."""
    job, limit = scenario.job, scenario.gpu.available_bytes if scenario.gpu else 0
    if any(point.fits and point.peak_reserved_bytes > limit for point in found.curve):
        yield f"reserved: {RETURNED}"
    if getattr(found, what) or job.mode != "train" or job.mesh.ranks > 1 or job.compile:
        return
    words = [model_word(scenario), "--gpu", gpu_word(scenario), "--block", str(found.block)]
    yield f"next: `vrambudget plan {shlex.join(words)}` looks for what fits"


def _answer(scenario: Scenario, args: argparse.Namespace) -> int:
    """Print how many new tokens there is room for."""
    from vrambudget.full_length import MOST  # noqa: PLC0415 - asked for seldom
    from vrambudget.planning.longest import longest_answer  # noqa: PLC0415 - asked for seldom

    with working_on("replaying the answer token by token"):
        new, at_most = longest_answer(
            scenario, margin_bytes=margin_bytes(args.margin, scenario.gpu)
        )
    job, output = scenario.job, chosen_format(args)
    values = {"batch": job.batch, "prompt": job.prompt, "new": new, "new_at_most": at_most}
    if output == "json":
        emit(json.dumps(values, indent=2), args)
    elif output == "csv":
        emit(render_rows(_OF_AN_ANSWER, [values], output), args)
    else:
        assert scenario.gpu is not None  # noqa: S101 - the option is required
        where = f"batch {job.batch}, on {scenario.gpu.name}"
        said = f"the GPU is full at {(job.prompt or 0) + new:,} tokens of a row"
        if new < at_most:
            said = "the holes that steps leave decide, and `--new N` replays one length"
        elif (job.prompt or 0) + new == scenario.config.learned_positions:
            said = "the model has positions for no more"
        elif new == MOST:
            said = "the GPU is not full then; longer answers were not tried"
        most = f"{new:,}" if new == at_most else f"{new:,} to {at_most:,}"
        fits = (
            f"most new tokens that fit: {most} after a prompt of {job.prompt:,} ({where}): {said}"
        )
        emit(fits if new else f"not even the prompt fits ({where})", args)
    return DONE if new else DOES_NOT_FIT


def _request(args: argparse.Namespace) -> int:
    """Print the longest request that a server holds."""
    if given := job_fields(args):
        raise VramBudgetError(
            f"{', '.join(sorted(given))} with --longest-model-len: a server has no such option",
            hint="`vrambudget serve MODEL --gpu GPU` takes vLLM's options",
        )
    served = _server_options(args)
    engine = served.pop("engine", "vllm")
    server = serve(args.model, gpu=args.gpu, engine=engine, **served)
    if "longest_request" not in server.values:
        raise VramBudgetError(
            f"--longest-model-len is of vllm and sglang, not of {engine}", where="--engine"
        )
    longest, limit = server.values["longest_request"], server.values["max_model_len"]
    name, gpu = find_model(args.model).name, find_gpu(count_of_gpus(args.gpu)[1]).name
    values = {"model": name, "max_model_len": longest, "positions": limit}
    asked = "max_model_len" in served
    own = ", as asked" if asked else ", the model's own limit"
    of = "" if asked else "the model's "
    said = own if longest == limit else f" of {of}{limit:,}"
    title = {"vllm": "vLLM", "sglang": "SGLang"}[engine]
    text = f"longest request that {title} starts with: {longest:,} tokens{said} (on {gpu})"
    if chosen_format(args) == "json":
        text = json.dumps(values, indent=2)
    emit(text if longest else f"{title} does not start with {name} on {gpu}", args)
    return DONE if longest else DOES_NOT_FIT


def _server_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the server's options that were given."""
    own = ServeOptions.model_fields.keys() - Job.model_fields.keys()
    return {name: value for name, value in vars(args).items() if name in own}


def _verdict(found: Fit, what: What, scenario: Scenario, margin: int) -> str:
    assert scenario.gpu is not None  # noqa: S101 - the option is required
    size, job, gpu = getattr(found, what), scenario.job, scenario.gpu.name
    each = f"each of {job.mesh.ranks} " if job.mesh.ranks > 1 else ""
    where = f"on {each}{gpu}" + (f" with {format_bytes(margin)} left free" if margin else "")
    if not size:
        return f"not even {what} 1 fits {where}"
    largest = {"batch": "largest batch", "block": "longest block"}[what]
    length = row_text(scenario.config_of_job, job) or f"at block {found.block}"
    if job.mode == "generate":
        length = f"at a prompt of {found.block - job.new:,} and {job.new:,} new tokens"
        largest = {"block": "longest prompt and answer"}.get(what, largest)
    other = length if what == "batch" else f"at batch {found.batch}"
    return f"{largest} that fits: {size} ({other}, {where})"
