"""`vrambudget serve MODEL --gpu GPU`: how many requests an inference server holds on a card."""

import argparse
import json

from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.job_options import add_options
from vrambudget.cli.output import add_output_options, chosen_format, emit
from vrambudget.config.gpus import find_gpu
from vrambudget.config.model_config import load_config
from vrambudget.config.source import find_model
from vrambudget.errors import VramBudgetError
from vrambudget.models import config_class
from vrambudget.report.serving import as_values, holds_one, served
from vrambudget.serving.options import ServeOptions
from vrambudget.serving.vllm import serve
from vrambudget.serving.weights import decoder_of


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser("serve", description=__doc__, allow_abbrev=False)
    parser.add_argument("model", help="a model's name, a config.json, or a hub id")
    parser.add_argument("--gpu", required=True, metavar="GPU", help="a name, a size, or auto")
    parser.add_argument(
        "--context", type=int, metavar="N", help="tokens of a request (default: the longest)"
    )
    add_options(parser, ServeOptions)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what the server holds. Returns 1 if it would not start."""
    given = {name: value for name, value in vars(args).items() if name in ServeOptions.model_fields}
    options = ServeOptions.parse(given)
    found = find_model(args.model)
    config = decoder_of(load_config(found.values, config_class, where=found.where))
    gpu = find_gpu(args.gpu)
    serving = serve(config, gpu, options)
    if args.context is not None and not 0 < args.context <= serving.max_model_len:
        raise VramBudgetError(
            f"context is {args.context}; a request has 1 to {serving.max_model_len} tokens here"
        )
    output = chosen_format(args)
    if output == "json":
        text = json.dumps(as_values(serving, args.context), indent=2)
    elif output == "table":
        text = served(found.name, gpu, options, serving, args.context)
    else:
        raise VramBudgetError(f"serve has no format {output}", hint="table and json are there")
    emit(text, args)
    starts = serving.cache_bytes[0] > 0 and holds_one(serving)
    return DONE if starts else DOES_NOT_FIT
