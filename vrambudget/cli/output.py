"""Where a command's result goes: stdout, or the file of `-o`, in the format that was asked for."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vrambudget.errors import VramBudgetError
from vrambudget.report import FORMATS, Format

_SUFFIXES: dict[str, Format] = {".json": "json", ".csv": "csv", ".md": "markdown"}
_PATIENCE = 1.0  # seconds without a word
_ERASE_LINE = "\r\x1b[K"


def add_output_options(parser: argparse.ArgumentParser, *, writes: str = "write to FILE") -> None:
    """Add --format and -o; `writes` is the help of -o."""
    parser.add_argument("--format", choices=FORMATS, help="(default: by -o's suffix, else table)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=writes)


def chosen_format(args: argparse.Namespace) -> Format:
    """Return the format that was asked for, or that of the file's suffix."""
    if args.format:
        asked: Format = args.format
        return asked
    return _SUFFIXES.get(args.output.suffix.lower(), "table") if args.output else "table"


def wants_colour(args: argparse.Namespace) -> bool:
    """Return whether the result goes to a terminal that may be coloured (https://no-color.org)."""
    return not args.output and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def emit(parts: str | Iterable[str], args: argparse.Namespace) -> None:
    """Write a result, all of it or its parts in turn: on stdout each is seen once it is there.

    Raises VramBudgetError where the file cannot be written.
    """
    parts = [parts] if isinstance(parts, str) else parts
    if args.output:
        try:
            args.output.write_text("".join(f"{part}\n" for part in parts), encoding="utf-8")
        except OSError as error:
            raise VramBudgetError(
                f"cannot write the result: {error.strerror}", where=str(args.output)
            ) from error
        sys.stderr.write(f"wrote {args.output}\n")
        return
    try:
        for part in parts:
            sys.stdout.write(f"{part}\n")
            sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough; Python's own flush at exit must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def telling(what: str) -> Iterator[Callable[[], None]]:
    """Give a function to call now and then: it shows `what` on a terminal if it takes long."""
    start, shown = time.monotonic(), False

    def tell() -> None:
        nonlocal shown
        if not shown and sys.stderr.isatty() and time.monotonic() - start > _PATIENCE:
            shown = True
            sys.stderr.write(f"{what} ...")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        if shown:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
