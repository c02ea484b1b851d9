"""stdout and stderr as they may be found: closed, on a full disk, or a pipe that nobody reads.

Results that cannot be written are an error. Talk that cannot be heard is none, and a reader that
has seen enough (`| head`) ends nothing.
"""

import contextlib
import os
import sys
from typing import TextIO

from vrambudget.errors import VramBudgetError
from vrambudget.escaping import for_terminal


def escape_what_cannot_be_encoded() -> None:
    """Let both streams write every text, whatever the terminal's encoding."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def put(text: str, *, coloured: bool = False) -> bool:
    """Write a result, or a part of it, to stdout at once. Raises VramBudgetError.

    Returns whether anybody reads on.
    """
    if sys.stdout is None:  # Python found it closed
        raise VramBudgetError("cannot write the result: standard output is closed")
    try:
        sys.stdout.write(for_terminal(text, coloured=coloured))
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon(sys.stdout)
        return False
    except OSError as error:
        _abandon(sys.stdout)
        raise VramBudgetError(
            f"cannot write the result: {error.strerror}", where="standard output"
        ) from None
    return True


def say(text: str) -> None:
    """Say a line on stderr, if anybody can hear it."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(for_terminal(f"{text}\n"))
            sys.stderr.flush()
        except OSError:
            _abandon(sys.stderr)


def _abandon(stream: TextIO) -> None:
    """Let what waits in the stream go nowhere: Python's own flush at exit must not fail."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
