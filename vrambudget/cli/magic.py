"""`%load_ext vrambudget` and `%vram gpt2 --batch 8 --gpu 12GB`: the command line, in a notebook.

The arguments are those of the command `vrambudget`; the result is a `Budget`, which displays
itself. `%vram plan ...` and the other commands print as in a terminal.

If the model is the name of a variable, that object is used: `%vram model --batch 8` is a
preflight.
"""

import argparse
import shlex
from contextlib import suppress
from typing import Any

from vrambudget.budget import Budget
from vrambudget.cli import main
from vrambudget.cli.job_options import add_job_options, job_fields, with_files
from vrambudget.cli.parser import COMMANDS, Parser
from vrambudget.cli.streams import say
from vrambudget.errors import VramBudgetError
from vrambudget.estimator import estimate
from vrambudget.integrations.preflight import predict


def load_ipython_extension(shell: Any) -> None:
    """Register %vram."""

    def vram(line: str) -> Budget | None:
        """Show what a job takes: %vram gpt2 --batch 8 --gpu 12GB."""
        words = shlex.split(line)
        if not words or words[0] in COMMANDS or {"-h", "--help"} & {*words}:
            with suppress(SystemExit):  # --help ends a command
                main(words)
            return None
        try:
            return run(words, shell.user_ns)
        except VramBudgetError as error:
            say(error.render())
            return None

    shell.register_magic_function(vram, "line", "vram")


def run(words: list[str], names: dict[str, Any]) -> Budget:
    """Return the budget for these arguments; `names` are the notebook's variables."""
    args = with_files(_parser().parse_args(words))
    found = names.get(args.model)
    if hasattr(found, "named_parameters") or hasattr(found, "to_dict"):
        return predict(found, gpu=args.gpu or "auto", **job_fields(args))
    return estimate(args.model, gpu=args.gpu, **job_fields(args))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="%vram", add_help=False, allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--gpu")
    add_job_options(parser)
    return parser
