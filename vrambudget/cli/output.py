"""Where a command's result goes: stdout, or the file of `-o`, in the requested format."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from vrambudget.cli.streams import put, say
from vrambudget.config.config_file import CONFIG_NAME
from vrambudget.config.source import ModelWithFiles
from vrambudget.errors import VramBudgetError
from vrambudget.escaping import for_terminal
from vrambudget.files import write_file
from vrambudget.report import FORMATS, Format
from vrambudget.report.tabular import WIDTH

_SUFFIXES: dict[str, Format] = {
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".txt": "table",
    "": "table",
}
_NARROWEST, _WIDEST = 40, 120  # columns
_PATIENCE = 1.0  # seconds without a word
_ERASE_LINE = "\r\x1b[K"


def add_output_options(parser: argparse.ArgumentParser, *, writes: str = "write to FILE") -> None:
    """Add --format and -o; `writes` is the help of -o."""
    parser.add_argument(
        "--format", choices=FORMATS, help="(default: from the suffix of -o, else table)"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=writes)


def chosen_format(args: argparse.Namespace, *, pictures: Sequence[str] = ()) -> Format:
    """Return the requested format, or that of a file's suffix; `pictures`: their suffixes."""
    if args.format:
        asked: Format = args.format
        return asked
    if args.output is None:
        return "table"
    suffix = args.output.suffix.lower()
    if suffix not in _SUFFIXES:
        raise VramBudgetError(
            f"no result has the suffix {args.output.suffix!r}",
            where=str(args.output),
            hint=f"use {', '.join([*pictures, *filter(None, _SUFFIXES)])}, or say --format",
        )
    return _SUFFIXES[suffix]


def wants_colour(args: argparse.Namespace) -> bool:
    """Return whether the result may have colours: on a terminal, or where FORCE_COLOR is set.

    NO_COLOR forbids them (https://no-color.org, https://force-color.org).
    """
    if args.output or os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or _is_terminal()


def width(args: argparse.Namespace) -> int:
    """Return how many columns a report has: the terminal's, of an 80-column one elsewhere."""
    if args.output or not _is_terminal():
        return WIDTH
    columns = shutil.get_terminal_size((WIDTH, 24)).columns
    return min(max(columns, _NARROWEST), _WIDEST)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def emit(parts: str | Iterable[str], args: argparse.Namespace) -> None:
    """Write a result, all of it or its parts in turn: on stdout each is seen once it is there.

    Raises VramBudgetError where it cannot be written.
    """
    parts = [parts] if isinstance(parts, str) else parts
    if args.output:
        text = for_terminal("".join(f"{part}\n" for part in parts))
        write_file(args.output, text.encode(errors="backslashreplace"))
        say(f"wrote {args.output}")
        return
    for part in parts:
        if not put(f"{part}\n", coloured=wants_colour(args)):
            return


@contextmanager
def progress_of(what: str) -> Iterator[Callable[[], None]]:
    """Give a function to call now and then: it shows `what` on a terminal if it takes long."""
    start, shown = time.monotonic(), False
    wants = sys.stderr is not None and sys.stderr.isatty()

    def show() -> None:
        nonlocal shown
        if not shown and wants and time.monotonic() - start > _PATIENCE:
            shown = True
            sys.stderr.write(f"{what} ...")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if shown:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()


@contextmanager
def working_on(what: str) -> Iterator[None]:
    """Show `what` on a terminal if what is inside takes long, which need not call anything."""
    with progress_of(what) as show:
        timer = Timer(1.1 * _PATIENCE, show)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def show_progress() -> None:
    """Let the lines that the program logs as it works go to stderr."""
    import logging  # noqa: PLC0415 - few commands take so long

    log = logging.getLogger("vrambudget")
    if log.level == logging.NOTSET:
        handler = logging.Handler()
        handler.emit = lambda record: say(record.getMessage())  # type: ignore[method-assign]
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def refuse_to_overwrite(args: argparse.Namespace) -> None:
    """Raise VramBudgetError where the result would go into a file that it is made of."""
    output = getattr(args, "output", None)
    if output is None:
        return
    for source in _sources(args):
        try:
            same = source.samefile(output)
        except (OSError, ValueError):  # one of them is not there: not the same
            continue
        if same:
            raise VramBudgetError(
                "the result would overwrite what it is made of",
                where=str(output),
                hint="name another file after -o",
            )


def _sources(args: argparse.Namespace) -> list[Path]:
    """Return the files that a command reads, as far as its arguments name them."""
    named = [getattr(args, name, None) for name in ("jobs", "log")]
    model = getattr(args, "model", None)
    named += [model.model, *model.files] if isinstance(model, ModelWithFiles) else [model]
    files = [Path(name) for name in named if name] + list(getattr(args, "records", ()))
    return [*files, *(file / CONFIG_NAME for file in files)]
