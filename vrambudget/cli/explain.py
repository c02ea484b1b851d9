"""`vrambudget explain LOG [--model MODEL ...]`: what the out-of-memory message in a log means.

A log is a file, standard input, or the message itself, pasted as an argument. Given the job that
crashed, it names the tensor that was requested and what would have avoided the crash; messages of
servers and of other libraries are known by their words, and a start of llama.cpp or Ollama is shown
by device. The explanation goes to stdout, as text or JSON; a log that cannot be read is an error.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from vrambudget.cli import DONE
from vrambudget.cli.job_options import add_job_options, job_fields
from vrambudget.cli.streams import put
from vrambudget.errors import VramBudgetError
from vrambudget.escaping import json_text
from vrambudget.files import read_file
from vrambudget.oom.explain import Explanation, explain, phase_of, render_explanation
from vrambudget.oom.foreign import explain_foreign, render_foreign
from vrambudget.oom.llama_log import Start, render_start, start_of
from vrambudget.oom.message import OomMessage, messages_in, no_message
from vrambudget.oom.with_job import explain_with_job
from vrambudget.scenario import Scenario, resolve

_MOST_MIB = 64  # of a log: what is longer is read in parts
_MOST_BYTES = _MOST_MIB << 20
_WORDS = 3  # of a message, at least
_LONGEST_NAME = 255  # of a file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "log",
        metavar="LOG",
        nargs="?",
        default="-",
        help="a file, the message itself, or - (default) for standard input",
    )
    parser.add_argument("--format", choices=["text", "json"], default="text")
    parser.add_argument("--model", help="the job's model: a name, a config.json, or a hub id")
    parser.add_argument("--gpu", metavar="GPU", help="the GPU (default: from the message)")
    add_job_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the explanation of `args.log`. Returns 0, or 2 where there is nothing to explain."""
    try:
        text = read_log(args.log)
        messages = messages_in(text)
        foreign = _foreign(text, messages, args)
        start = None if messages else start_of(text)
        if foreign is not None or start is not None:
            put("\n\n".join(filter(None, (foreign, _started(start, args, foreign)))) + "\n")
            return DONE
        if not messages:
            raise no_message(text)
        scenario = _task(args, messages)
        explanation = explain_with_job(messages, scenario) if scenario else explain(messages)
    except VramBudgetError as error:
        error.where = error.where or ("the text" if _is_text(args.log) else args.log)
        raise
    render = explanation_json if args.format == "json" else render_explanation
    put(f"{render(explanation)}\n")
    return DONE


def _foreign(text: str, messages: Sequence[OomMessage], args: argparse.Namespace) -> str | None:
    """Return the explanation of what others said, None where PyTorch's allocator printed sizes.

    MPS has an allocator of its own, whose message has the same words in it; what vLLM says of its
    sampler explains the allocator's message before it.
    """
    found = explain_foreign(text, has_sizes=any(message.has_numbers for message in messages))
    if found is None:
        return None
    if args.format == "json":
        return json_text(asdict(found))
    return render_foreign(found)


def _started(start: Start | None, args: argparse.Namespace, foreign: str | None) -> str | None:
    """Return what llama.cpp's start holds; as JSON where nothing else is said."""
    if start is None:
        return None
    if args.format == "text":
        return render_start(start)
    return None if foreign else json_text(start.held)


def _task(args: argparse.Namespace, messages: Sequence[OomMessage]) -> Scenario | None:
    """Return the job that crashed, None where it is not described."""
    fields = job_fields(args)
    if args.model is None:
        if fields or args.gpu:
            raise VramBudgetError("a job needs a model", hint="add --model, for example gpt2")
        return None
    message = next((m for m in messages if m.has_numbers), messages[0])
    if phase_of(message.frames) == "evaluation":
        fields.setdefault("mode", "eval")
    seen = f"{message.capacity.bytes}B" if message.capacity else None
    return resolve(args.model, gpu=args.gpu or seen, **fields)


def read_log(name: str) -> str:
    """Return the text of a log file ("-": standard input), whatever its encoding, or itself."""
    if _is_text(name):
        return name
    data = _standard_input() if name == "-" else _file(name)
    utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # PowerShell's `> train.log`
    return data.decode("utf-16" if utf16 else "utf-8", errors="replace")


def _is_text(name: str) -> bool:
    """Whether this is a message and no file's name: it has words, and there is no such file."""
    return len(name.split()) >= _WORDS and (len(name) > _LONGEST_NAME or not Path(name).exists())


def _file(name: str) -> bytes:
    hint = f"hand in a part: tail -c {_MOST_MIB}M FILE | vrambudget explain -"
    try:
        return read_file(Path(name), "log", _MOST_BYTES, hint=hint)
    except VramBudgetError as error:
        error.hint = error.hint or "give a log's path, its message, or - for standard input"
        raise


def _standard_input() -> bytes:
    if sys.stdin is None:  # Python found it closed
        raise VramBudgetError("cannot read the log: standard input is closed")
    try:
        data = sys.stdin.buffer.read(_MOST_BYTES + 1)
    except OSError as error:
        raise VramBudgetError(f"cannot read the log: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise VramBudgetError(
            f"cannot read the log: it is more than {_MOST_MIB} MiB",
            hint=f"hand in its end: tail -c {_MOST_MIB}M",
        )
    return data


def explanation_json(explanation: Explanation) -> str:
    """Return the explanation as JSON; sizes are in bytes."""
    record = asdict(explanation) | {"next_steps": explanation.next_steps}
    return json_text(record)
