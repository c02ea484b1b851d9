"""`vrambudget rehearse --gpu "RTX 3060" -- python train.py …`: the command line of rehearsals.

The script's own output stays as it is; the report comes after it on stdout, progress goes to
stderr. The exit code is the script's own, or 2 where it could not be rehearsed. Where the
script's output is in the way, `--output` writes the report to a file.
"""

import argparse
import json
import sys
from pathlib import Path

from vrambudget.rehearse.report import render
from vrambudget.rehearse.run import rehearse

NAME = "rehearse"
HELP = "run any PyTorch script on a virtual GPU and say what its memory does"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(NAME, help=HELP, description=__doc__)
    parser.add_argument("--gpu", required=True, help="card by name or size: 'RTX 3060', 80GB")
    parser.add_argument("--steps", type=int, help="stop after that many optimizer steps")
    parser.add_argument("--timeout", type=float, help="stop after that many seconds")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--output", type=Path, help="write the report there, not to stdout")
    parser.add_argument(
        "--snapshot", type=Path, metavar="FILE", help="for pytorch.org/memory_viz: the history"
    )
    parser.add_argument(
        "--any-torch", action="store_true", help="try a version of PyTorch that nobody tried yet"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Rehearse and print the report; return the script's exit code. Raises VramBudgetError."""
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    result = rehearse(
        words,
        gpu=args.gpu,
        steps=args.steps,
        timeout=args.timeout,
        snapshot=args.snapshot,
        any_torch=args.any_torch,
        say=_say,
    )
    text = json.dumps(result.to_dict(), indent=2) if args.format == "json" else render(result)
    if args.output:
        args.output.write_text(text + "\n")
    else:
        sys.stdout.write(f"{text}\n")
    return result.exit_code


def _say(line: str) -> None:
    print(f"vrambudget: {line}", file=sys.stderr, flush=True)  # noqa: T201 - progress
