"""The command line: find the command, run it, turn mistakes into two lines and an exit code.

    vrambudget gpt2 --batch 8            the default command, `estimate`
    vrambudget gpus                      another one
    vrambudget -h                        all of them

A command is a module with `add_parser(subparsers)`, which sets `run(args) -> exit code`. Only the
module of the command that is run is imported. Results go to stdout, talk to stderr.
Exit codes: 0 it fits or is done, 1 it does not fit, 2 it could not be done.
"""

import sys
from collections.abc import Sequence

from vrambudget.errors import VramBudgetError

DONE, DOES_NOT_FIT, FAILED, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    from vrambudget.cli.parser import parse  # noqa: PLC0415 - so that errors there are caught

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        code: int = args.run(args)
    except VramBudgetError as error:
        sys.stderr.write(f"{error.render()}\n")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return code
