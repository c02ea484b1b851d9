"""`vrambudget record`: write down what a model's own code does, as a file that needs no torch.

The file answers on any plain install: `vrambudget my.program --batch 4 --gpu 24GB`. A configuration
leaves widths, depth, batch and length free as far as its model's code does; a module of one's own
leaves free what its factory's arguments say.
"""

import argparse
from pathlib import Path

from vrambudget.cli import DONE
from vrambudget.cli.streams import put
from vrambudget.config.source import FoundModel, find_model
from vrambudget.errors import VramBudgetError
from vrambudget.files import write_file
from vrambudget.program.reading import read
from vrambudget.program.writing import written
from vrambudget.units import whole_number

NEEDED = "pip install 'vrambudget[torch]', and for an image model timm or torchvision"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "model",
        help="a config.json, a model's name, timm:NAME, torchvision:NAME, or module:factory, which"
        " returns (module, inputs)",
    )
    parser.add_argument("-o", "--output", type=Path, help="the file (default: the name + .program)")
    parser.add_argument("--task", help="the head (default: the model's own)")
    parser.add_argument(
        "--tasks",
        type=lambda text: text.split(","),
        metavar="TASK,TASK",
        help="all jobs of these tasks in one file: with and without a mask, sdpa and eager",
    )
    parser.add_argument(
        "--attention",
        type=lambda text: text.split(","),
        metavar="NAME,NAME",
        default=["sdpa", "eager"],
        help="with --tasks: of these attentions alone (default: sdpa,eager)",
    )
    parser.add_argument(
        "--join",
        type=Path,
        metavar="FILE",
        help="with --tasks: a program of other versions of transformers, to which this one's joins",
    )
    parser.add_argument(
        "--block", type=int, help="tokens of the recording, where a window decides (default: 40)"
    )
    parser.add_argument("--no-cache", action="store_true", help="as Trainer runs it: use_cache off")
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="of module:factory: an argument that is a free size, and its usual value; of timm and"
        " torchvision: pixels=224, channels_last=1",
    )


def run(args: argparse.Namespace) -> int:
    """Record the model and write its file."""
    model, sizes = _asked(args.model), dict(map(_size, args.size))
    if args.join is not None and not args.tasks:
        raise VramBudgetError("--join needs --tasks: a file of all jobs is what joins")
    try:
        from vrambudget.recording.command import recorded  # noqa: PLC0415 - it imports torch

        name, found = recorded(
            model,
            args.tasks or args.task,
            sizes,
            attentions=args.attention,
            block=args.block,
            cache=not args.no_cache,
            join=args.join,
        )
    except ImportError as error:
        raise VramBudgetError(f"recording runs the model's code: {error}", hint=NEEDED) from None
    path = args.output or Path(f"{name}.program")
    text = written(found.program)
    text = written(read(text, str(path)))  # more of it is shared once it is numbered
    write_file(path, text.encode(), "program")
    put(f"{path}: {found.program.source['class']}\n")
    put(f"  free: {', '.join(found.free)}\n")
    if found.fixed:
        put(f"  as recorded: {', '.join(found.fixed)}\n")
    put(f"  equal to the traced model at {found.checked} sizes that were not recorded\n")
    return DONE


def _asked(model: str) -> FoundModel | str:
    """Return the configuration that is meant, or a module's factory as it was named."""
    if ":" in model and "/" not in model:
        return model
    found = find_model(model)
    if not isinstance(found.values.get("model_type"), str):
        raise VramBudgetError("model_type is missing", where=found.where)
    return found


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if whole_number(number) is None or not name.isidentifier():
        raise VramBudgetError(f"--size {text!r} should be NAME=N, such as height=512")
    return name, int(number)
