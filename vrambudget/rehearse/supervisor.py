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
_NOTES = "below"  # in the folder: "pid start" of each process that was seen below, a line each


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
    noted = set[str]()
    while os.getppid() == parent:
        _note(folder, noted)
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


def _note(folder: Path, noted: set[str]) -> None:
    """Note who is below now."""
    living = _living()
    new = {f"{pid} {living[pid][1]}" for pid in _below({os.getpid()}, living)} - noted
    if new:
        noted |= new
        with contextlib.suppress(OSError), (folder / _NOTES).open("a") as file:
            file.write("".join(f"{line}\n" for line in new))


def _end(number: signal.Signals, seconds: float) -> None:
    """Send a signal to all that is below, until nothing is, or for so many seconds."""
    limit = time.monotonic() + seconds
    signalled = set[int]()
    while below := _below({os.getpid()}, _living()):
        for pid in below if number == signal.SIGKILL else below - signalled:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)
        signalled |= below
        if time.monotonic() > limit:
            return
        list(_changed())
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)


def end_left(folder: Path) -> None:
    """Kill what a supervisor that was killed left: who was noted, or has the folder's variable.

    Escapes: who lost its parents and cleared its environment within half a second.
    """
    try:
        noted = {*(folder / _NOTES).read_text().splitlines()}
    except (OSError, ValueError):
        noted = set()
    limit = time.monotonic() + _DEADLY_SECONDS
    while time.monotonic() < limit:
        living = _living()
        del living[os.getpid()]
        roots = {
            pid
            for pid, (_, start) in living.items()
            if f"{pid} {start}" in noted or _is_marked(pid, folder)
        }
        for pid in roots | _below(roots, living):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not roots:
            return
        time.sleep(0.02)


def _is_marked(pid: int, folder: Path) -> bool:
    mark = os.fsencode(f"VRAMBUDGET_FOLDER={folder}")
    with contextlib.suppress(OSError):
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _living() -> dict[int, tuple[int, str]]:
    """Return the parent of each process that lives, and when it started (proc(5))."""
    found: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - many, and only their names
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                state, parent, *rest = file.read().rpartition(b")")[2].split()
                if state not in (b"Z", b"X"):
                    found[int(name)] = int(parent), rest[17].decode()
    return found


def _below(roots: set[int], living: dict[int, tuple[int, str]]) -> set[int]:
    """Return the processes that live below others."""
    found = set[int]()
    while new := {pid for pid, (up, _) in living.items() if up in found | roots} - found:
        found |= new
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
