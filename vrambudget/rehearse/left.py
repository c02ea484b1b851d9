"""What the processes of a rehearsal left in its folder: records, snapshots, word of progress."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vrambudget.files import RESULT_BYTES, read_file
from vrambudget.rehearse.hook.vrambudget_hook.endings import END_SIGNAL
from vrambudget.units import format_bytes

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps it
_QUIET_SECONDS = 5.0  # between two lines of progress, after the first steps
_FIRST_STEPS = 3


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return the processes' records, the one with the highest peak first."""
    records = [json.loads(_text(path)) for path in folder.glob("record-*.json")]
    records += _killed(folder, {record["pid"] for record in records})
    return sorted(records, key=lambda record: record.get("peaks", [0, 0, -1])[::-1], reverse=True)


def _killed(folder: Path, ended: set[int]) -> Iterator[dict[str, Any]]:
    """Yield what is known of processes that could not leave a record.

    What they reserved is the virtual GPU's own count; the rest is what they noted after a step.
    """
    for path in folder.glob("progress-*"):
        pid = _pid(path)
        lines = [line for line in _text(path).splitlines() if line.endswith("]")]
        if pid not in ended and lines:
            steps, *peaks = json.loads(lines[-1])
            peaks[-1] = max(peaks[-1], _used(folder / f"used-{pid}"))
            yield {"pid": pid, "steps": steps, "peaks": peaks, "ended": "killed", "cuda": True}


def _used(path: Path) -> int:
    """Return the most that a process took of the virtual GPU (native/memory.c)."""
    if not path.exists():
        return 0
    return int.from_bytes(read_file(path, "record", 8), sys.byteorder)


def ask_for_records(folder: Path) -> None:
    """Let processes that used the GPU write their records and end: whether stopped or deaf."""
    for path in folder.glob("progress-*"):
        pid = _pid(path)
        if not (folder / f"record-{pid}.json").exists():
            with suppress(OSError):
                os.kill(pid, END_SIGNAL)
                os.kill(pid, signal.SIGCONT)


def remove_shared_memory(folder: Path) -> None:
    """Remove shared memory that the command's processes made and left (hook/servers.py)."""
    for path in folder.glob("shared-*"):
        with suppress(OSError):
            (_SHARED_MEMORY / path.name.removeprefix("shared-")).unlink()


def unrecorded(folder: Path, records: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what was not seen, in words: a process that used the GPU, or all of the command."""
    seen = {record["pid"] for record in records}
    used = {_pid(path) for path in folder.glob("used-*")} - seen
    if used:
        pids = ", ".join(map(str, sorted(used)))
        return f"nothing was recorded of a process that used the GPU (pid {pids})"
    return None if records else "nothing was recorded: no Python process imported torch"


def _text(path: Path) -> str:
    return read_file(path, "record", RESULT_BYTES).decode(errors="replace")


def _pid(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def keep_snapshot(folder: Path, target: Path) -> None:
    """Keep the largest process's snapshot."""
    found = sorted(folder.glob("snapshot-*.pickle"), key=lambda path: path.stat().st_size)
    if found:
        draft = target.with_name(f".{target.name}.part")
        shutil.move(found[-1], draft)
        draft.replace(target)


class Progress:
    """Says how far the script is: after each of the first steps, and then now and then."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say, self.seen, self.said = folder, say, 0, 0.0

    def __call__(self) -> None:
        """Look for steps that were not seen yet."""
        self._say_stopped()
        if self.seen >= _FIRST_STEPS and time.monotonic() - self.said < _QUIET_SECONDS:
            return
        for path in self.folder.glob("progress-*"):
            lines = [line for line in _text(path).splitlines() if line[:3] != "[0,"]
            if lines and len(lines) > self.seen and lines[-1].endswith("]"):
                self.seen, self.said = len(lines), time.monotonic()
                step, _, _, reserved = json.loads(lines[-1])
                self.say(f"step {step}: peak reserved {format_bytes(reserved)}")

    def _say_stopped(self) -> None:
        """Say that a process waits to be continued, as the supervisor noted."""
        note = self.folder / "stopped"
        if note.exists():
            pid = _text(note)
            note.unlink()
            self.say(f"process {pid} is stopped (SIGSTOP): `kill -CONT {pid}` lets it go on")
