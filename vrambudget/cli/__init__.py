"""The command line: find the command, run it, turn errors into two lines and an exit code.

    vrambudget gpt2 --batch 8            the default command, `estimate`
    vrambudget gpus                      another one
    vrambudget -h                        all of them

A command is a module with `add_arguments(parser)` and `run(args) -> exit code`; its docstring is
the help. Only the module of the command that runs is imported. Results go to stdout, messages to
stderr.
Exit codes: 0 it fits or is done, 1 it does not fit, 2 it could not be done.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from vrambudget.cli.streams import escape_what_cannot_be_encoded, say
from vrambudget.errors import VramBudgetError

DONE, DOES_NOT_FIT, FAILED, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    escape_what_cannot_be_encoded()
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except VramBudgetError as error:
        say(error.render())
    except OSError as error:  # a folder that is gone, a disk that fails: not ours to mend
        where = None if error.filename is None else str(error.filename)
        say(VramBudgetError(error.strerror or str(error), where=where).render())
    except KeyboardInterrupt:
        return INTERRUPTED
    return FAILED


def _run(argv: Sequence[str]) -> int:
    with _starting():
        from vrambudget.cli.output import (  # noqa: PLC0415 - help needs none
            refuse_to_overwrite,
            show_progress,
        )
        from vrambudget.cli.parser import parse  # noqa: PLC0415 - so that errors there are caught

        args = parse(argv)
    refuse_to_overwrite(args)
    if getattr(args, "compile", None):  # which takes a while
        show_progress()
    code: int = args.run(args)
    return code


_freeze = cache(gc.freeze)  # once; to count what is frozen takes milliseconds


@contextmanager
def _starting() -> Iterator[None]:
    """Import quickly: what is made now stays, so no collection need look at it, now or later.

    Once in a process: a further call's parsers go, and would be kept for ever.
    """
    gc.disable()
    try:
        yield
    finally:
        _freeze()
        gc.enable()
