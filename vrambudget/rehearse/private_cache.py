"""A cache of libraries that only its owner can have written: what is loaded is what was built.

    owner     this user, of the folders and of every file
    mode      nobody else may write there
    digest    each file is the one that was built, by SHA-256 (`digests.json`)

A folder of somebody else is refused. Files that changed, or were never finished, are built anew.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vrambudget.errors import VramBudgetError
from vrambudget.files import RESULT_BYTES, open_file, read_file

_DIGESTS = "digests.json"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_private(folder: Path) -> None:
    """Make a folder, and its parents, that only this user can write to. Raises VramBudgetError."""
    with usable(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owner(folder)
        mode = folder.stat().st_mode
        if mode & _OTHERS_WRITE:
            folder.chmod(stat.S_IMODE(mode) & ~_OTHERS_WRITE)


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Let an OSError (read-only, full, not a folder) be a VramBudgetError that names the cache."""
    try:
        yield
    except OSError as error:
        raise VramBudgetError(
            f"the cache cannot be used: {error.strerror}",
            where=str(folder),
            hint="XDG_CACHE_HOME names another folder for it",
        ) from None


def check_owner(path: Path) -> None:
    """Raise VramBudgetError for what is not this user's own, or a link. Raises OSError."""
    status = path.lstat()
    mine = status.st_uid == os.geteuid()
    if not mine or stat.S_ISLNK(status.st_mode):
        raise VramBudgetError(
            f"the cache is {'a link' if mine else 'of another user'}: its libraries are not loaded",
            where=str(path),
            hint="remove it, or name another folder by XDG_CACHE_HOME",
        )


def seal(folder: Path) -> None:
    """Note the digest of every file of a folder that was just built."""
    digests = {f.name: _digest(f) for f in folder.iterdir() if stat.S_ISREG(f.lstat().st_mode)}
    (folder / _DIGESTS).write_text(json.dumps(digests))


def is_whole(folder: Path) -> bool:
    """Whether a folder holds what `seal` noted. Raises VramBudgetError where others could write."""
    if not folder.exists():
        return False
    check_owner(folder)
    if folder.stat().st_mode & _OTHERS_WRITE:
        raise VramBudgetError(
            "others may write to this folder: its libraries are not loaded",
            where=str(folder),
            hint="remove it: it is built anew",
        )
    digests = _sealed(folder)
    for file in map(folder.joinpath, digests):
        if file.exists():
            check_owner(file)
    return bool(digests) and all(_digest(folder / name) == digests[name] for name in digests)


def _sealed(folder: Path) -> dict[str, str]:
    """Return the digests that `seal` noted; none where it was unfinished, or did not exist yet."""
    try:
        digests = json.loads(read_file(folder / _DIGESTS, "cache", RESULT_BYTES))
    except (OSError, ValueError):
        return {}
    return digests if isinstance(digests, dict) else {}


def _digest(file: Path) -> str | None:
    if not file.is_file():
        return None
    with open_file(file, "cache") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()
