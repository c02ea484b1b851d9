"""The process that PyTorch's compiler runs in: it imports torch once, and forks for each job.

So every job is compiled by a process that compiled nothing before, and what ends that one (a fault
in PyTorch's C++, main memory that is full) ends neither the next one nor the process that asked.

What is sent back of a job, in turn (process.py reads it):

    ("log", (level, text))    a line of progress
    ("made", value)            what the function returned
    ("failed", error)          what it raised
    ("ended", code)            how the forked process ended; negative: by which signal
"""

import gc
import logging
import os
import pickle
import signal
import sys
import traceback
import warnings
from multiprocessing.connection import Connection, wait
from typing import Any

from vrambudget.errors import VramBudgetError

_IDLE_SECONDS = 120  # then what torch takes in main memory is given back
_LOG = logging.getLogger("vrambudget")


def serve(handle: int) -> None:
    """Answer one request after the other, until nobody is there to ask or none came for a while."""
    asker: Connection[Any, Any] = Connection(handle)
    gc.collect()
    gc.freeze()  # collecting in a forked process looks at its own objects only
    warnings.simplefilter("ignore")  # of Python, about forking beside NumPy's threads
    while asker.poll(_IDLE_SECONDS):
        try:
            request = asker.recv()
        except EOFError:
            return
        if not _forked(request, asker):
            return


def _forked(request: tuple[Any, ...], asker: "Connection[Any, Any]") -> bool:
    """Let a forked process answer; return whether somebody is still there to hear it."""
    ended, end = os.pipe()  # closed with the process that holds its end
    process = os.fork()
    if not process:
        os.close(ended)
        _work(request, asker)
    os.close(end)
    is_left = asker in wait([asker, ended])  # a request is answered before the next one comes
    if is_left:
        os.kill(process, signal.SIGKILL)
    os.close(ended)
    _, status = os.waitpid(process, 0)
    if not is_left:
        asker.send(("ended", os.waitstatus_to_exitcode(status)))
    return not is_left


def _work(request: tuple[Any, ...], asker: "Connection[Any, Any]") -> None:
    """Do what is asked as where it was asked from, and end this process."""
    folder, environment, path, job = request
    code = 1
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path
        _LOG.addHandler(_Teller(asker))
        _LOG.setLevel(logging.INFO)
        function, arguments = pickle.loads(job)  # noqa: S301 - from the process that started us
        asker.send(("made", function(*arguments)))
        code = 0
    except Exception as error:  # noqa: BLE001 - whatever it is, it is for who asked
        asker.send(("failed", _portable(error)))
        code = 0
    finally:
        os._exit(code)


class _Teller(logging.Handler):
    """Sends what is logged to who asked."""

    def __init__(self, asker: "Connection[Any, Any]") -> None:
        super().__init__()
        self._asker = asker

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line."""
        self._asker.send(("log", (record.levelno, record.getMessage())))


def _portable(error: Exception) -> Exception:
    """Return an error that can be sent; a bug has the traceback from here as a note."""
    if not isinstance(error, VramBudgetError):  # which says all that a user needs
        error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - an error's class may need anything to be made again
        return RuntimeError(traceback.format_exc())
    return error
