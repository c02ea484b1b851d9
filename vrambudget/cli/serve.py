"""`vrambudget serve MODEL --gpu GPU`: how many requests an inference server holds on a GPU.

Each engine has its own options, with its own names and defaults.
"""

import argparse

from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.job_options import add_options, readable
from vrambudget.cli.output import add_output_options, chosen_format, emit
from vrambudget.cli.streams import say
from vrambudget.errors import VramBudgetError
from vrambudget.integrations.server import serve
from vrambudget.serving.options import CACHE_DTYPES, OPTIONS

_SHORT = {
    "tensor_parallel_size": ("-tp",),
    "pipeline_parallel_size": ("-pp",),
    "data_parallel_size": ("-dp",),
    "quantization": ("-q",),
}
_READABLE = ("max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "model", help="a model's name, a config.json, a hub id, or a GGUF file; name:Q4_K_M"
    )
    parser.add_argument(
        "--gpu", required=True, metavar="GPU", help="a name, a size, 2xh100, or auto"
    )
    parser.add_argument(
        "--context", type=readable, metavar="N", help="tokens of a request (default: the longest)"
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="let the installed engine start on a virtual GPU, and answer with its own figures",
    )
    known: set[str] = set()
    choices = {"kv_cache_dtype": CACHE_DTYPES}
    for options in OPTIONS.values():
        add_options(parser, options, without=known, choices=choices, short=_SHORT)
        known |= set(options.model_fields)
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to change a type
        if action.dest in _READABLE:
            action.type = readable
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print what the server holds. Returns 1 if it would not start."""
    output = chosen_format(args)
    if output not in {"json", "table"}:
        raise VramBudgetError(f"serve has no format {output}", hint="table and json are there")
    fields = {name for options in OPTIONS.values() for name in options.model_fields}
    given = {name: value for name, value in vars(args).items() if name in fields}
    engine = given.pop("engine", None)
    server = serve(
        args.model,
        gpu=args.gpu,
        engine=engine,
        context=args.context,
        rehearse=args.rehearse,
        say=lambda line: say(f"vrambudget: {line}"),
        **given,
    )
    emit(server.to_json() if output == "json" else str(server), args)
    return DONE if server.starts else DOES_NOT_FIT
