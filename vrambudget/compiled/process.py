"""A function called in a process of its own: what ends that one does not end this one.

PyTorch's compiler runs C++ on tensors that its authors did not mean to be compiled without a GPU,
and a process that compiled two dozen models was once ended by glibc. So each job has a fresh
Python. It reads the function and its arguments, and writes pickles, in turn:

    ("log", (level, text))     a line of progress
    ("made", value)            what the function returned
    ("failed", error)          a VramBudgetError that it raised

Any other end is an error of its own, with the last line that the process wrote. An interrupt ends
both processes, and the system ends the child with its parent.
"""

import ctypes
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, TypeVar, cast

from vrambudget.compiled.config import REHEARSE
from vrambudget.errors import VramBudgetError

Result = TypeVar("Result")

_LOG = logging.getLogger("vrambudget")
_ANSWER = """
import sys
sys.path[:] = sys.argv[1:]
from vrambudget.compiled.process import answer
answer()
"""
_PR_SET_PDEATHSIG = 1  # of prctl: the signal that a process gets when its parent ends


def elsewhere(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return what a function returns, and raise what it raises, in a process of its own.

    Function, arguments and result are pickled. Raises VramBudgetError if the process is lost.
    """
    job = pickle.dumps((function, arguments))
    command = [sys.executable, "-c", _ANSWER, *sys.path]
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(  # noqa: S603 - our own words
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output
            )
        except OSError as error:
            raise VramBudgetError(f"Python cannot be started: {error}", hint=REHEARSE) from error
        with process:
            assert process.stdin and process.stdout  # noqa: S101, PT018 - both are pipes
            try:
                with suppress(BrokenPipeError):  # it ended, and says why
                    process.stdin.write(job)
                    process.stdin.close()
                found = _heard(process.stdout)
            except BaseException:  # an interrupt
                process.kill()
                raise
        if found is None:
            raise _lost(process.returncode, output)
    kind, value = found
    if kind == "failed":
        raise value
    return cast("Result", value)


def _heard(answers: IO[bytes]) -> tuple[str, Any] | None:
    """Log progress; return ("made", value) or ("failed", error), None where nothing came."""
    with suppress(EOFError, pickle.UnpicklingError):
        while True:
            kind, value = pickle.load(answers)  # noqa: S301 - from the process that we started
            if kind != "log":
                return kind, value
            _LOG.log(*value)
    return None


def _lost(code: int, output: IO[bytes]) -> VramBudgetError:
    """Return the error of a process that ended without an answer."""
    output.seek(0)
    *_, last = [b"", *filter(None, output.read().splitlines())]
    words = f": {last.decode(errors='replace')}" if last else ""
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
    if -code == signal.SIGKILL:
        how += "; main memory may have been full"
    return VramBudgetError(f"the process that compiles {how}{words}", hint=REHEARSE)


def answer() -> None:
    """Run the function that standard input names, and write its result to standard output."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    function, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 - from who started us
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # other prints must not mix with the answer
        _LOG.addHandler(_LogSender(answers))
        _LOG.setLevel(logging.INFO)
        try:
            found = ("made", function(*arguments))
        except VramBudgetError as error:
            found = ("failed", error)
        pickle.dump(found, answers)


class _LogSender(logging.Handler):
    """Sends what is logged to who asked."""

    def __init__(self, answers: IO[bytes]) -> None:
        super().__init__()
        self._answers = answers

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line."""
        pickle.dump(("log", (record.levelno, record.getMessage())), self._answers)
        self._answers.flush()
