"""`vrambudget run MODEL --gpu GPU`: which file runs here, how long a context, how to start it.

Counted by the rules of llama.cpp, whose options it takes. Without a quantisation there is a row
for each usual one, and the best that runs here is shown.
"""

import argparse
from typing import Any

from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.job_options import add_options, readable
from vrambudget.cli.output import add_output_options, chosen_format, emit
from vrambudget.errors import VramBudgetError
from vrambudget.integrations import run_here
from vrambudget.serving.options import LLAMA_CPP_SHORT, LlamaCppOptions

_OWN = {"engine", "ctx_size", "n_gpu_layers", "override_tensor"}
_ALL_LAYERS = 999


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "model", help="a model's name, name:Q4_K_M, a GGUF file, or a hub id org/name-GGUF:Q4_K_M"
    )
    parser.add_argument(
        "--gpu",
        required=True,
        metavar="GPU",
        help="a name, a size, 2x24GB, 24GB,12GB, auto, or none",
    )
    parser.add_argument("--ram", metavar="SIZE", help="main memory that is free, as 64GB")
    parser.add_argument(
        "--context",
        "--ctx-size",
        "-c",
        type=readable,
        metavar="N",
        help="tokens of all slots together, also as 32K; 0: the model's own limit (default: as many"
        " as fit)",
    )
    parser.add_argument(
        "--n-gpu-layers",
        "--gpu-layers",
        "-ngl",
        type=_layers,
        default=argparse.SUPPRESS,
        metavar="N",
        help="layers on GPUs, the output among them; all; auto (default): as many as fit",
    )
    parser.add_argument(
        "--override-tensor",
        "-ot",
        action="append",
        default=argparse.SUPPRESS,
        metavar="RULES",
        help=f"{LlamaCppOptions.model_fields['override_tensor'].description}; also several times",
    )
    parser.add_argument(
        "--ollama",
        action="store_true",
        help="as `ollama run` starts it: Q4_K_M if none is named, its num_ctx and num_batch",
    )
    add_options(
        parser,
        LlamaCppOptions,
        without=_OWN,
        short={name: (flag,) for name, flag in LLAMA_CPP_SHORT.items()},
        bare={"flash_attn": "on"},  # once it took no value
    )
    add_output_options(parser)


def _layers(text: str) -> int | None:
    """Return how many layers a text means, None for auto."""
    if text in {"auto", "-1"}:
        return None
    return _ALL_LAYERS if text in {"all", "-2"} else int(text)


def run(args: argparse.Namespace) -> int:
    """Print what runs. Returns 1 if nothing does."""
    output = chosen_format(args)
    if output not in {"json", "table"}:
        raise VramBudgetError(f"run has no format {output}", hint="table and json are there")
    fields = LlamaCppOptions.model_fields
    given: dict[str, Any] = {name: value for name, value in vars(args).items() if name in fields}
    if given.get("n_gpu_layers", 0) is None:
        del given["n_gpu_layers"]
    if "override_tensor" in given:
        given["override_tensor"] = ",".join(given["override_tensor"])
    found = run_here.run(
        args.model,
        gpu=args.gpu,
        ram=args.ram,
        context=args.context,
        ollama=args.ollama,
        **given,
    )
    emit(found.to_json() if output == "json" else str(found), args)
    return DONE if found.starts else DOES_NOT_FIT
