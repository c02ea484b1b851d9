"""`vrambudget explain FILE`: what the out-of-memory message in a log means.

The explanation goes to stdout, as text or JSON; what cannot be read is an error on stderr, exit 2.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from vrambudget.errors import VramBudgetError
from vrambudget.planning.explain import Explanation, explain, render_explanation
from vrambudget.planning.oom_message import parse_oom


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the program's parser."""
    parser = subparsers.add_parser(
        "explain",
        help="say what an out-of-memory message in a log means",
        description="Find PyTorch's out-of-memory messages in a log and say what happened.",
    )
    parser.add_argument("log", metavar="FILE", help="a log file, or - for standard input")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the explanation of `args.log`. Returns 0, or 2 where there is nothing to explain."""
    try:
        explanation = explain(parse_oom(read_log(args.log)))
    except VramBudgetError as error:
        error.where = error.where or args.log
        sys.stderr.write(f"{error.render()}\n")
        return 2
    render = explanation_json if args.format == "json" else render_explanation
    sys.stdout.write(f"{render(explanation)}\n")
    return 0


def read_log(name: str) -> str:
    """Return the text of a log file ("-": standard input), whatever its encoding."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise VramBudgetError(
            f"cannot read the log: {error.strerror}", where=name, hint="name a file, or - for stdin"
        ) from error
    utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # PowerShell's `> train.log`
    return data.decode("utf-16" if utf16 else "utf-8", errors="replace")


def explanation_json(explanation: Explanation) -> str:
    """Return the explanation as JSON; sizes are in bytes."""
    record = asdict(explanation) | {"next_steps": explanation.next_steps}
    return json.dumps(record, indent=2, ensure_ascii=False)
