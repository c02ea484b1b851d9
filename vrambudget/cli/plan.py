"""`vrambudget plan MODEL --gpu GPU`: the fewest GPUs for a job, and the layouts that fit them."""

import argparse
import json
from dataclasses import asdict
from typing import get_args

from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.job_options import add_job_options, job_fields
from vrambudget.cli.output import add_output_options, chosen_format, emit, telling
from vrambudget.config.fields.ranks import Ranks
from vrambudget.estimator import resolve
from vrambudget.planning.layouts import Goal
from vrambudget.planning.plan import Plan, plan_for
from vrambudget.report.tabular import Column, render_rows
from vrambudget.units import format_bytes

_COLUMNS = [
    Column("layout", "layout"),
    Column("peak_bytes", "of each GPU", "right", format_bytes),
    Column("left_bytes", "left", "right", format_bytes),
    Column("network_bytes", "sent in a step", "right", format_bytes),
    Column("recomputes", "recomputes", "left", lambda again: "forward" if again else "-"),
    Column("host_bytes", "main memory", "right", format_bytes),
]


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser("plan", description=__doc__, allow_abbrev=False)
    parser.add_argument("model", help="a model's name, a config.json, or a hub id")
    parser.add_argument(
        "--gpu", required=True, metavar="GPU", help="one GPU: a name ('h100') or a size (80GB)"
    )
    parser.add_argument(
        "--goal",
        choices=get_args(Goal),
        default="full",
        help="train all weights, LoRA adapters, adapters of 4-bit weights, or any (default: full)",
    )
    parser.add_argument(
        "--most", type=int, default=1024, metavar="N", help="GPUs at most (default: 1024)"
    )
    parser.add_argument(
        "--offload", action="store_true", help="also FSDP2 with shards in main memory"
    )
    add_job_options(parser, without=Ranks)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan. Returns 1 if no number of GPUs does."""
    scenario = resolve(args.model, gpu=args.gpu, **job_fields(args))
    with telling("looking for the fewest GPUs") as tell:
        found = plan_for(scenario, args.goal, args.most, tell, offload=args.offload)
    output = chosen_format(args)
    if output == "json":
        text = json.dumps(asdict(found), indent=2, ensure_ascii=False)
    else:
        text = render_rows(_COLUMNS, [asdict(choice) for choice in found.choices], output)
        if output != "csv":
            text = "\n".join([_verdict(found), "", text, *_commands(found)])
    emit(text, args)
    return DONE if found.gpus else DOES_NOT_FIT


def _verdict(found: Plan) -> str:
    if not found.gpus:
        return f"{found.model} does not fit on {found.most} x {found.gpu}"
    number = "one" if found.gpus == 1 else f"{found.gpus} x"
    return f"{found.model} needs {number} {found.gpu}; what fits, the cheapest first"


def _commands(found: Plan) -> list[str]:
    if not found.choices:
        return []
    nccl = format_bytes(found.choices[0].nccl_bytes)
    note = [f"left: beside {nccl} for NCCL's buffers"] if found.gpus > 1 else []
    return ["", *note, "the report of each:", *(f"  {each.command}" for each in found.choices)]
