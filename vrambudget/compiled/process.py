"""Functions called in a process of their own: what ends that one does not end ours.

    ours      asks, shows progress, and keeps the answer; it imports no torch
    theirs    a fresh Python (server.py), which imports torch once, and forks for each job

PyTorch's compiler runs C++ on tensors that its authors did not mean to be compiled without a card,
and a process that compiled two dozen models was once ended by glibc. An interrupt ends both; where
ours ends, theirs sees that nobody is left. It is started with the first question of a process, and
again if it is not there any more.
"""

import atexit
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from vrambudget.compiled.config import REHEARSE
from vrambudget.errors import VramBudgetError

Result = TypeVar("Result")

_LOG = logging.getLogger("vrambudget")
_SERVE = """
import sys
handle, *sys.path = sys.argv[1:]
import vrambudget.compiled.build
from vrambudget.compiled.server import serve
serve(int(handle))
"""
"""What it runs: torch is imported before it forks, once for all jobs."""

_turn = threading.Lock()
_server: "_Server | None" = None


def elsewhere(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return what a function returns, and raise what it raises, in a process of its own.

    Function, arguments and result are pickled. Raises VramBudgetError if the process is lost.
    """
    job = pickle.dumps((function, arguments))
    request = (str(Path.cwd()), dict(os.environ), list(map(str, sys.path)), job)
    with _turn:
        try:
            kind, answer = _answer(request)
        except BaseException:  # an interrupt
            end()
            raise
    if kind == "failed":
        raise answer
    return cast("Result", answer)


def _answer(request: tuple[Any, ...]) -> tuple[str, Any]:
    """Return the answer of the process, which may have to be started."""
    global _server  # noqa: PLW0603 - one for a process, as torch would be
    if _server is not None and _server.owner == os.getpid():
        with suppress(_GoneError):  # it ends itself when nothing is asked
            return _server.answer(request)
        _server.end()
    _server = _Server()
    try:
        return _server.answer(request)
    except _GoneError:
        raise _server.lost() from None


@atexit.register
def end() -> None:
    """End the process, if there is one: the next question starts another."""
    global _server  # noqa: PLW0603 - likewise
    if _server is not None and _server.owner == os.getpid():
        _server.end()
    _server = None


class _GoneError(Exception):
    """The server is not there any more."""


class _Server:
    """A Python that waits for jobs; `owner`: the process that started it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as it runs
        self._other, theirs = multiprocessing.Pipe()
        handle = theirs.fileno()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own words
                [sys.executable, "-c", _SERVE, str(handle), *map(str, sys.path)],
                pass_fds=[handle],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,  # so that an interrupt is ours alone to hand on
            )
        except OSError as error:
            raise VramBudgetError(f"Python cannot be started: {error}", hint=REHEARSE) from error
        finally:
            theirs.close()

    def answer(self, request: tuple[Any, ...]) -> tuple[str, Any]:
        """Return ("made", value) or ("failed", error). Raises _GoneError without an answer."""
        found: tuple[str, Any] | None = None
        try:
            self._other.send(request)
            while True:
                kind, answer = self._other.recv()
                if kind == "ended":
                    return found or ("failed", self.lost(answer))
                if kind == "log":
                    _LOG.log(*answer)
                else:
                    found = kind, answer
        except (EOFError, ConnectionError):
            raise _GoneError from None

    def lost(self, code: int | None = None) -> VramBudgetError:
        """Return the error of a process that ended without an answer; None: the server itself."""
        self._output.seek(0)
        *_, last = [b"", *filter(None, self._output.read().splitlines())]
        words = f": {last.decode(errors='replace')}" if last else ""
        code = self.end() if code is None else code
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            how += "; main memory may have been full"
        return VramBudgetError(f"the process that compiles {how}{words}", hint=REHEARSE)

    def end(self) -> int:
        """End the process, and what it forked; return how it ended."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._other.close()
        self._output.close()
        return self._process.wait()
