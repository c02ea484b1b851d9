"""Run a command and end with it all that it started, however the rehearsal itself ends.

    python -I -S supervisor.py PARENT FOLDER COMMAND ...

It is the parent of whatever the command leaves behind (PR_SET_CHILD_SUBREAPER): a process that goes
into a session of its own, or whose parent ends, is still below it. When the command ends, the
others get SIGTERM and two seconds, then SIGKILL. When PARENT ends before (SIGKILL, a closed
terminal), all are killed at once and FOLDER goes. SIGINT is handed on to the command; SIGTERM ends
everything. The exit code is the command's own, as a shell says it.

Source: prctl(2). It runs without the rest of this package, in a session of its own, and alone: no
signal to the rehearsal's group reaches it.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_WATCHED = {getattr(signal, name, 0) for name in ("SIGCHLD", "SIGINT", "SIGTERM", "SIGHUP")}
_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 2.0
_DEADLY_SECONDS = 10.0  # a process that SIGKILL does not end by then waits for a device
_NOT_STARTED = 127


def main(parent: int, folder: str, command: list[str]) -> int:
    """Run the command; return its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # they are waited for
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    own = os.getpid()

    def begin() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != own:
            os._exit(_NOT_STARTED)

    try:
        child = subprocess.Popen(  # noqa: S603 - the user's own command
            command,
            start_new_session=True,
            preexec_fn=begin,  # noqa: PLW1509 - no thread is here
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return _NOT_STARTED
    code = _wait(child.pid, parent, Path(folder))
    if code is not None:
        _end(signal.SIGTERM, _PATIENCE_SECONDS)
    _end(signal.SIGKILL, _DEADLY_SECONDS)
    if os.getppid() != parent:
        shutil.rmtree(folder, ignore_errors=True)
    return 128 + signal.SIGKILL if code is None else code


def _wait(child: int, parent: int, folder: Path) -> int | None:
    """Return the command's exit code, None where it is to be ended."""
    while os.getppid() == parent:
        for pid, status in _changed():
            if os.WIFSTOPPED(status):
                with contextlib.suppress(OSError):
                    (folder / "stopped").write_text(str(pid))
            elif pid == child:
                code = os.waitstatus_to_exitcode(status)
                return 128 - code if code < 0 else code
        got = signal.sigtimedwait(_WATCHED, _POLL_SECONDS)
        number = got.si_signo if got else 0
        if number == signal.SIGINT:
            for each in (signal.SIGINT, signal.SIGCONT):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child, each)
        elif number in (signal.SIGTERM, signal.SIGHUP):
            break
    return None


def _changed() -> Iterable[tuple[int, int]]:
    """Yield the processes below that ended or were stopped, with their status."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
            yield found


def _end(number: signal.Signals, seconds: float) -> None:
    """Send a signal to all that is below, until nothing is, or for so many seconds."""
    limit = time.monotonic() + seconds
    signalled = set[int]()
    while below := _below():
        for pid in below if number == signal.SIGKILL else below - signalled:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)
        signalled |= below
        if time.monotonic() > limit:
            return
        list(_changed())
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)


def _below() -> set[int]:
    """Return the processes that live below this one."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - many, and only their names
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                state, parent, *_ = file.read().rpartition(b")")[2].split()
                if state not in (b"Z", b"X"):
                    parents[int(name)] = int(parent)
    found, own = set[int](), {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in found | own} - found:
        found |= new
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
