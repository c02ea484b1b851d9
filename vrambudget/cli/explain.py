"""`vrambudget explain FILE [--model MODEL ...]`: what the out-of-memory message in a log means.

With the job that crashed, the tensor is named that was asked for, and what would have avoided it.
The explanation goes to stdout, as text or JSON; what cannot be read is an error on stderr, exit 2.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from vrambudget.cli.job_options import add_job_options, job_fields
from vrambudget.errors import VramBudgetError
from vrambudget.estimator import Scenario, resolve
from vrambudget.oom.explain import Explanation, explain, phase_of, render_explanation
from vrambudget.oom.message import OomMessage, parse_oom
from vrambudget.oom.with_job import explain_with_job


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the program's parser."""
    parser = subparsers.add_parser(
        "explain",
        help="say what an out-of-memory message in a log means",
        description="Find PyTorch's out-of-memory messages in a log and say what happened.",
    )
    parser.add_argument("log", metavar="FILE", help="a log file, or - for standard input")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    parser.add_argument("--model", help="the model of the job: a card's name, a config.json, an id")
    parser.add_argument(
        "--gpu", metavar="CARD", help="the card (default: by the message's numbers)"
    )
    add_job_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the explanation of `args.log`. Returns 0, or 2 where there is nothing to explain."""
    try:
        messages = parse_oom(read_log(args.log))
        scenario = _task(args, messages)
        explanation = explain_with_job(messages, scenario) if scenario else explain(messages)
    except VramBudgetError as error:
        error.where = error.where or args.log
        sys.stderr.write(f"{error.render()}\n")
        return 2
    render = explanation_json if args.format == "json" else render_explanation
    sys.stdout.write(f"{render(explanation)}\n")
    return 0


def _task(args: argparse.Namespace, messages: Sequence[OomMessage]) -> Scenario | None:
    """Return the job that crashed, None where it is not described."""
    fields = job_fields(args)
    if args.model is None:
        if fields or args.gpu:
            raise VramBudgetError("a job needs a model", hint="say --model, for example gpt2")
        return None
    message = next((m for m in messages if m.has_numbers), messages[0])
    if phase_of(message.frames) == "evaluation":
        fields.setdefault("mode", "eval")
    seen = f"{message.capacity.bytes}B" if message.capacity else None
    return resolve(args.model, gpu=args.gpu or seen, **fields)


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
