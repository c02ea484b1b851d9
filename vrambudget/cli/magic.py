"""`%load_ext vrambudget`, then `%vram gpt2 --gpu 12GB`: the command line, in a notebook.

The arguments are those of the command `vrambudget`; the result is a `Budget`, which displays
itself. `%vram plan ...` and the other commands print as in a terminal.

If the model is the name of a variable, that object is used: `%vram model --batch 8` is a
preflight.

`%%rehearse --gpu t4 --steps 3` above a cell rehearses the notebook up to this cell, as a script in
another process. What only IPython runs (magics, `!pip install`) is left out of it.
"""

import argparse
import ast
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
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
    """Register %vram and %%rehearse."""

    @_in_two_lines
    def vram(words: list[str]) -> Budget | None:
        """Show what a job takes: %vram gpt2 --batch 8 --gpu 12GB."""
        if words and words[0] not in COMMANDS and not {"-h", "--help"} & {*words}:
            return run(words, shell.user_ns)
        with suppress(SystemExit):  # --help ends a command
            main(words)
        return None

    @_in_two_lines
    def rehearse(words: list[str], cell: str) -> None:
        """Rehearse the cells that ran, and this one: %%rehearse --gpu t4 --steps 3."""
        cells = [*shell.user_ns["In"][:-1], shell.transform_cell(cell)]
        with tempfile.TemporaryDirectory(prefix="vrambudget-") as folder:
            file = Path(folder) / "notebook.py"
            code = "\n".join(_statements(cells))
            file.write_bytes(code.encode(errors="backslashreplace"))
            with suppress(SystemExit):  # --help ends a command
                main(["rehearse", *words, "--", sys.executable, str(file)])

    shell.register_magic_function(vram, "line", "vram")
    shell.register_magic_function(rehearse, "cell", "rehearse")


def _in_two_lines(magic: Callable[..., Any]) -> Callable[..., Any]:
    """Return a magic of a line's words that says a mistake in two lines, as a terminal has it."""

    @wraps(magic)
    def called(line: str, *cell: str) -> Any:
        try:
            words = shlex.split(line)
        except ValueError as error:  # a quotation that is not closed
            return say(f"error: {line!r:.200}: {error}")
        try:
            return magic(words, *cell)
        except VramBudgetError as error:
            say(error.render())

    return called


def _statements(cells: Iterable[str]) -> Iterator[str]:
    """Yield the statements that run without IPython; a cell that failed to parse has none."""
    for cell in cells:
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # all of ast.parse
            for statement in ast.parse(cell).body:
                text = ast.unparse(statement)
                if "get_ipython()" not in text:
                    yield text


def run(words: list[str], names: dict[str, Any]) -> Budget:
    """Return the budget for these arguments; `names` are the notebook's variables."""
    args = with_files(_parser().parse_args(words))
    found = names.get(args.model)
    if hasattr(found, "named_parameters") or hasattr(found, "to_dict"):
        return predict(found, gpu=args.gpu or "auto", **job_fields(args))
    return estimate(args.model, gpu=args.gpu, **job_fields(args))


@cache
def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="%vram", add_help=False, allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--gpu")
    add_job_options(parser)
    return parser
