"""cuDNN in a process of its own, where stub libraries can stand for a driver and cuBLASLt.

Without a driver it does not name engines that use cuBLASLt, which a few convolutions take, most of
them over single pixels. Stubs have to be loaded before the real libraries, which PyTorch loads.
The process reads what is asked from a socket, and ends with this one.
"""

import os
import sys
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from subprocess import DEVNULL, Popen
from typing import Any

_ANSWER = "import sys; sys.path = sys.argv[1:]; import vrambudget.rehearse.cudnn as a; a.answer()"


def ask_apart(*question: object) -> Any:
    """Return what `asking.ask` says, and whether it had a driver. Raises EOFError or OSError."""
    connection, process = _started(os.getpid())
    try:
        connection.send(question)
        return connection.recv()
    except BaseException as error:
        connection.close()
        if not isinstance(error, EOFError | OSError):  # an interrupt: another answers the next
            process.kill()
            process.wait()
            _started.cache_clear()
        raise


@cache
def _started(_pid: int) -> tuple[Connection, Popen[bytes]]:
    parent_end, child_end = Pipe()
    command = [sys.executable, "-c", _ANSWER, *sys.path]
    with child_end:  # the session is its own: interrupts are for us
        return parent_end, Popen(  # noqa: S603 - our own words
            command,
            stdin=child_end.fileno(),
            stdout=DEVNULL,
            stderr=DEVNULL,
            start_new_session=True,
        )
