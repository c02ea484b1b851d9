"""The folder of one rehearsal: it goes with it, and one whose rehearsal was killed goes later.

A folder is in use while somebody holds the lock of its file `lock` (flock(2): it ends with the last
process that holds it). The next rehearsal of this user ends the processes of folders that nobody
holds, and removes the folders.
"""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vrambudget.errors import VramBudgetError
from vrambudget.rehearse.supervisor import end_left

_PREFIX = "vrambudget-rehearsal-"
_LOCK = "lock"


@contextlib.contextmanager
def workplace() -> Iterator[tuple[Path, int]]:
    """Make a folder; yield it, and its lock, for a process that holds it, too.

    Raises VramBudgetError.
    """
    try:
        _clear(Path(tempfile.gettempdir()))
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = _locked(folder / ".lock")
        (folder / ".lock").rename(folder / _LOCK)
    except OSError as error:
        raise VramBudgetError(
            f"there is no folder for the rehearsal: {error.strerror}",
            where=str(error.filename or "the folder for temporary files"),
            hint="TMPDIR names another one",
        ) from None
    try:
        yield folder, lock
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked(file: Path) -> int:
    """Return the handle of a file that nobody else holds. Raises OSError."""
    import fcntl  # noqa: PLC0415 - of POSIX alone, as rehearsals are

    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _clear(folder: Path) -> None:
    """Remove this user's folders that nobody holds, and the processes that work there."""
    for left in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = left.lstat()
            mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if mine and (left / _LOCK).is_file():
                lock = _locked(left / _LOCK)
                end_left(left)
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)
