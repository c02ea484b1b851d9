"""`vrambudget plan MODEL --gpu GPU`: how to train a model there, or how many GPUs that takes.

On one GPU the recipes that fit, what gives up least first, each with the largest batch; options of
the job that are given stay as they are. Where none fits: the fewest GPUs, and their layouts.
For GPUs that are there (--gpu 4x24GB): the layouts that fit them, each with the largest batch.
"""

import argparse
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, get_args

from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.job_options import add_job_options, job_fields, readable
from vrambudget.cli.output import add_output_options, chosen_format, emit, progress_of
from vrambudget.config.fields.ranks import Ranks
from vrambudget.config.foreign.torchtitan import flavor_of, model_of
from vrambudget.config.gpus import count_of_gpus, find_gpu, on_nodes
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.escaping import json_text
from vrambudget.planning.choices import Choice, gpu_word, how_many
from vrambudget.planning.fit import margin_bytes
from vrambudget.planning.layouts import MACHINE, Goal
from vrambudget.planning.plan import Plan, Wish, named_gpus, plan_for
from vrambudget.report.plan import held, render_plan
from vrambudget.report.tools import TOOLS, ToolName
from vrambudget.report.tools.words import model_id
from vrambudget.scenario import Scenario, resolve
from vrambudget.serving.gguf_cards import families
from vrambudget.serving.gguf_known import card_of
from vrambudget.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", help="a model's name, a config.json, or a hub id")
    parser.add_argument(
        "--gpu",
        required=True,
        metavar="GPU",
        help="a name ('h100') or a size (80GB), also with a number: 4xh100",
    )
    parser.add_argument(
        "--goal",
        choices=get_args(Goal),
        default="any",
        help="train all weights, LoRA adapters, adapters of 4-bit weights, or any (default: any)",
    )
    parser.add_argument(
        "--per-step",
        type=int,
        metavar="N",
        help="sequences of one optimizer step: batches are accumulated to it"
        " (default: the largest batch that fits)",
    )
    parser.add_argument(
        "--margin",
        metavar="SIZE",
        help="memory of each GPU to leave free (default: the published range of the CUDA context);"
        " a desktop takes 0.3 to 1.6 GB, Windows about 1 GiB",
    )
    parser.add_argument(
        "--most", type=int, default=1024, metavar="N", help="GPUs at most (default: 1024)"
    )
    parser.add_argument(
        "--offload", action="store_true", help="also FSDP2 with shards in main memory"
    )
    parser.add_argument(
        "--as",
        dest="tool",
        choices=get_args(ToolName),
        help="write the recipe for a tool: a script with transformers' Trainer, YAML for TRL,"
        " axolotl, LLaMA-Factory or accelerate, or torchtitan's TOML",
    )
    parser.add_argument(
        "--choice", type=int, default=1, metavar="N", help="which recipe to write (default: 1)"
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="machines, of so many GPUs each")
    parser.add_argument(
        "--serve", action="store_true", help="which vLLM server holds the most requests, instead"
    )
    parser.add_argument(
        "--context", type=readable, metavar="N", help="tokens of a request of --serve (8192)"
    )
    add_job_options(parser, without=Ranks)
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the plan. Returns 1 if no number of GPUs does."""
    fields = job_fields(args)
    if args.serve:
        return _serve(args, fields)
    if args.context is not None:
        raise VramBudgetError("--context is of --serve", hint="add --serve")
    named = frozenset(fields)
    gpus, per_node, device = named_gpus(on_nodes(args.gpu, args.nodes) or args.gpu)
    wish = Wish(args.goal, args.most, args.offload, named, args.per_step, gpus=gpus)
    wish = replace(wish, per_node=per_node)
    if args.tool is not None:
        tool = TOOLS[args.tool]
        if "block" not in fields and (block := resolve(_model(args), **fields).job.block):
            fields["block"] = block  # as without --as: TRL would cut sequences at 1,024
        fields = {**(tool.job if gpus is None else tool.multi_gpu_job), **fields}
        wish = replace(wish, suits=tool.suits, autocast=tool.autocast)
    scenario = resolve(_model(args), gpu=device, **fields)
    wish = replace(wish, margin_bytes=margin_bytes(args.margin, scenario.gpu))
    if args.tool not in {None, "accelerate", "torchtitan"}:
        model_id(scenario)  # an error where the tool has no such model
    with progress_of("looking for recipes") as progress:
        found = plan_for(scenario, wish, progress)
    if args.tool is not None:
        shorter = "block" not in named
        emit(_written(found, scenario, args, may_be_shorter=shorter), args)
        return DONE
    output = chosen_format(args)
    text = json_text(asdict(found)) if output == "json" else render_plan(found, output)
    if output == "table" and found.gpus != 1 and _runs_here(scenario, args.model):
        run = f"vrambudget run {args.model} --gpu {args.gpu}"
        text += f"\n\nthat is for training; to run the model: {run}"
    emit(text, args)
    on_all = [each for each in found.alternatives if each.choice.gpus == (gpus or 1)]
    as_long = [each.choice.fields.get("block", found.block) == found.block for each in on_all]
    answered = (on_all and "block" not in named) or any(as_long)
    return DONE if found.gpus or answered else DOES_NOT_FIT


def _runs_here(scenario: Scenario, name: str) -> bool:
    """Return whether `vrambudget run` knows the model; cards are read where no rule does."""
    return scenario.config.model_type in families() or "gguf" in card_of(name)


def _serve(args: argparse.Namespace, fields: Mapping[str, object]) -> int:
    """Print which servers start, most requests first. Returns 1 if none does."""
    from vrambudget.planning.serving import serving_plan  # noqa: PLC0415 - asked for seldom
    from vrambudget.report.serving_plan import render_serving_plan  # noqa: PLC0415

    if fields:
        raise VramBudgetError(
            f"{', '.join(sorted(fields))} with --serve: a server has no such option",
            hint="`vrambudget serve MODEL --gpu GPU` takes the server's options",
        )
    gpus, name = count_of_gpus(args.gpu)
    gpu = find_gpu(name)
    rows = serving_plan(args.model, gpu, name, gpus, args.context)
    output = chosen_format(args)
    if output == "json":
        text = json_text([asdict(row) for row in rows])
    else:
        text = render_serving_plan(rows, args.model, gpu, gpus, output)
    emit(text, args)
    return DONE if rows else DOES_NOT_FIT


def _written(
    found: Plan, scenario: Scenario, args: argparse.Namespace, *, may_be_shorter: bool
) -> str:
    """Return the chosen recipe for the tool of --as. Raises VramBudgetError where there is none.

    Of one GPU that was named, one is: with shorter sequences, if their length was not asked for.
    """
    if args.format is not None:
        raise VramBudgetError(f"--format {args.format} cannot be combined with --as {args.tool}")
    choices = found.choices
    if alone := [each.choice for each in found.alternatives if each.choice.gpus == 1]:
        choices = tuple(alone) if may_be_shorter else ()
    if not choices:
        there = f"{found.most} x {found.gpu}" if found.is_named else f"one {found.gpu}"
        tips = [f"--block {alone[-1].fields['block']} does"] if alone else []
        tips += ["--as trl computes the loss in chunks of tokens"] if args.tool != "trl" else []
        raise VramBudgetError(
            f"no recipe that {args.tool} has words for fits {there} at {found.block:,} tokens",
            hint="; ".join([*tips, "without --as the plan says what fits"]),
        )
    if not 1 <= args.choice <= len(choices):
        raise VramBudgetError(
            f"--choice is {args.choice}; there are {len(choices)} recipes",
            hint="leave --as out to see them",
        )
    choice = choices[args.choice - 1]
    count = how_many(choice.gpus, found.per_node, " x ") if choice.gpus > 1 else ""
    file = str(args.output or "FILE")
    command, (used, left) = choice.command, map(format_bytes, held(choice))
    if args.tool == "torchtitan":  # the model is torchtitan's own, which the file alone names
        command = f"vrambudget {file} --gpu {count.replace(' ', '')}{gpu_word(scenario)}"
    head = [f"{args.model} on {count}{found.gpu}: {choice.layout}"]
    if (block := choice.fields.get("block", found.block)) != found.block:
        head.append(f"{block:,} tokens a sequence: {found.block:,} do not fit")
    head += [f"{used} of the GPU, {left} left", command]
    if choice.fields.get("expandable_segments"):
        head.append("run it with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    fields = {**choice.fields, **({"ranks": choice.gpus} if choice.gpus > 1 else {})}
    job = scenario.job.changed(fields).resolve(scenario.config_of_job)
    head += _starting(choice, args, file)
    return TOOLS[args.tool].write(scenario, job, "\n".join(head))


def _model(args: argparse.Namespace) -> Any:
    """Return the model as the tool builds it: torchtitan has a Llama 3 of its own."""
    if args.tool != "torchtitan":
        return args.model
    flavor = flavor_of(resolve(args.model).values)
    if flavor is None:
        raise NotModelledError(
            f"torchtitan's Llama 3 has no flavor like {args.model}",
            hint="name llama-3.1-8b, llama-3.1-70b or llama-3.1-405b, or leave --as out",
        )
    return model_of(flavor)


def _starting(choice: Choice, args: argparse.Namespace, file: str) -> list[str]:
    """Return how a recipe for several GPUs is started."""
    if choice.gpus == 1:
        return []
    _, per_node, _ = named_gpus(on_nodes(args.gpu, args.nodes) or args.gpu)
    each = min(choice.gpus, per_node or MACHINE)
    start = TOOLS[args.tool].launch.format(each=each).replace("FILE", file)
    nodes = choice.gpus // each
    lines = [f"start it: {start}" + (f" (on each of {nodes} machines)" if nodes > 1 else "")]
    if args.tool == "trl":
        lines.append("estimated with Trainer's loop: TRL's own loss needs less")
    return lines
