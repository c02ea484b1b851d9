"""`vrambudget page`: a live planner in the browser; nothing leaves this machine."""

import argparse
import signal
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NoReturn

from vrambudget.cli import DONE
from vrambudget.cli.streams import put, say
from vrambudget.files import home_of
from vrambudget.planner.server import serving
from vrambudget.planner.site import PYODIDE, write_site


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        help="write the planner there as static files that any server can host (default: serve it)",
    )
    parser.add_argument(
        "--pyodide",
        metavar="FOLDER",
        help=f"copy Pyodide {PYODIDE} from there (default: the page loads it from its address)",
    )
    parser.add_argument("--port", type=int, default=0, help="of the server (default: any)")


def run(args: argparse.Namespace) -> int:
    """Write the planner, or serve it until it is interrupted."""
    pyodide = home_of(Path(args.pyodide)) if args.pyodide else None
    if args.output:
        write_site(home_of(Path(args.output)), pyodide=pyodide)
        say(f"wrote {args.output}: host it anywhere, or `python -m http.server -d {args.output}`")
        return DONE
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name) and threading.current_thread() is threading.main_thread():
            signal.signal(getattr(signal, name), _leave)
    with TemporaryDirectory(prefix="vrambudget-") as folder:
        write_site(Path(folder), pyodide=pyodide)
        with serving(Path(folder), args.port) as address:
            put(f"{address}\n")
            say("Ctrl-C ends it")
            threading.Event().wait()
    return DONE


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """End as by Ctrl-C: the folder goes."""
    sys.exit(128 + number)
