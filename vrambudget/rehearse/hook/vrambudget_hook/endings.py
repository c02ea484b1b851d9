"""However a process ends, it leaves its record: by itself, by os._exit, by a signal, by the clock.

A process that is killed (SIGKILL) cannot; the parent then has what it wrote after each step.

Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

END_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 7  # at the end of the grace: no script ignores it
_ENDING = ("SIGTERM", "SIGHUP")  # end a Python without its exit handlers; fatal ones: ends.c


class Stopped(SystemExit):
    """Ends the script with exit code 0; its `finally` clauses and exit handlers still run."""


def watch_endings(write: Callable[[str | None], bool], native: Any) -> Any:
    """Let `write(ended)` run at the end. Returns what must live while the process does."""
    atexit.register(write, None)
    leave = os._exit

    def watched_exit(status: int) -> NoReturn:
        write(None)
        leave(status)

    os._exit = watched_exit

    def on_signal(number: int, _frame: FrameType | None) -> None:
        write(signal.Signals(number).name)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def end(_number: int, _frame: FrameType | None) -> None:
        if write(None):  # or it is being written at this moment
            leave(128 + signal.SIGKILL)

    if threading.current_thread() is threading.main_thread():
        signal.signal(END_SIGNAL, end)
        for name in _ENDING:
            number = getattr(signal, name)
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, on_signal)
    fatal = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda n: write(signal.Signals(n).name) and None)
    native.virtual_gpu_on_fatal(fatal)
    return fatal


def watch_clock(
    seconds: float,
    grace: float,
    up: Callable[[], None],
    write: Callable[[str | None], bool],
    is_writing: Callable[[], bool],
) -> None:
    """End the script after so many seconds; one that is stuck leaves its record all the same."""

    def ring() -> None:
        time.sleep(max(0.0, seconds))
        up()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        time.sleep(grace)
        if write("timeout"):  # or the main thread writes it, and leaves
            os._exit(0)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        if not is_writing():  # the record would be lost
            raise Stopped(0)

    report = sys.unraisablehook

    def unless_stopped(unraisable: Any) -> None:
        """Show what an exit handler raised, but that it was stopped."""
        if not isinstance(unraisable.exc_value, Stopped):
            report(unraisable)

    sys.unraisablehook = unless_stopped
    signal.signal(signal.SIGUSR1, stop)
    threading.Thread(target=ring, daemon=True, name="vrambudget timeout").start()
