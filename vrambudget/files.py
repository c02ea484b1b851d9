"""Files that users name: read with a bound, written whole or not at all.

What is read is a regular file: a pipe or a device may never end. What is written lies beside its
place until it is whole, so that a full disk or an interrupt leaves the old file as it was.
"""

import csv
import errno
import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from vrambudget.errors import VramBudgetError
from vrambudget.units import format_bytes

# Without waiting for somebody to write to a pipe; the bytes as they are.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

RESULT_BYTES = 2**32
"""What a process that we started may have written."""


def csv_beside(module: str, name: str) -> list[dict[str, str]]:
    """Return the lines of a CSV that lies beside a module; the first names the columns."""
    return list(csv.DictReader(text_beside(module, name).splitlines()))


def toml_beside(module: str, name: str) -> dict[str, Any]:
    """Return a TOML file that lies beside a module."""
    return tomllib.loads(text_beside(module, name))


def text_beside(module: str, name: str) -> str:
    """Return the text of a file that lies beside a module."""
    return (Path(module).parent / name).read_text(encoding="utf-8")


@contextmanager
def open_file(path: Path, what: str) -> Iterator[BufferedReader]:
    """Open a regular file, to be read by parts. Raises VramBudgetError for any other.

    An OSError while it is read is a VramBudgetError, too.
    """
    try:
        with os.fdopen(_opened(path), "rb") as file:
            yield file
    except OSError as error:
        raise _failed("read", what, path, error) from None


def _opened(path: Path) -> int:
    """Return the handle of a regular file, never waiting for it. Raises OSError for any other."""
    try:
        handle = os.open(path, _READ)
    except ValueError as error:  # a null character in its name
        raise OSError(errno.EINVAL, str(error)) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "this is not a regular file")
    return handle


def read_file(path: Path, what: str, most_bytes: int, *, hint: str | None = None) -> bytes:
    """Return what a regular file holds. Raises VramBudgetError for any other, or more bytes."""
    with open_file(path, what) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise VramBudgetError(
            f"cannot read the {what}: it is more than {format_bytes(most_bytes)}",
            where=str(path),
            hint=hint or "hand in a part of it",
        )
    return data


def write_file(path: Path, data: bytes, what: str = "result") -> None:
    """Write a file, whole or not at all. Raises VramBudgetError where that cannot be."""
    try:
        target = path.resolve()  # what a link leads to
        if target.exists() and not target.is_file():
            target.write_bytes(data)  # a device or a pipe: nothing to replace
        else:
            _replace(target, data)
    except (OSError, ValueError) as error:
        raise _failed("write", what, path, error) from None


def read_kept(path: Path, most_bytes: int) -> bytes | None:
    """Return what a file of a cache holds; None unless it is there, regular, and this user's own.

    A link in its place, a file of somebody else and one that cannot be read are as none.
    """
    with suppress(OSError, ValueError):
        handle = os.open(path, _READ | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            is_own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
            if stat.S_ISREG(status.st_mode) and is_own and status.st_size <= most_bytes:
                return file.read(most_bytes)
    return None


def write_kept(path: Path, data: bytes) -> None:
    """Keep a file in a cache, whole; keep nothing where it cannot be. A link is replaced."""
    with suppress(OSError, ValueError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace_whole(path, data)


def append_line(path: Path, line: str) -> None:
    """Add a line at the end of a file, in one write. Raises VramBudgetError where it cannot be."""
    try:
        with path.open("ab", buffering=0) as file:
            file.write(f"{line}\n".encode(errors="backslashreplace"))
    except (OSError, ValueError) as error:
        raise _failed("write", "record", path, error) from None


def home_of(path: Path) -> Path:
    """Return a path that may begin with `~` as it is meant. Raises VramBudgetError."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise VramBudgetError(f"this path leads nowhere: {error}", where=str(path)) from None


def named_by(variable: str, folder: str) -> Path:
    """Return the folder that a variable of the environment names. Raises VramBudgetError."""
    try:
        return home_of(Path(folder))
    except VramBudgetError as error:
        error.where = f"{variable}={folder}"
        raise


def cache_folder() -> Path:
    """Return the user's cache for vrambudget, or what VRAMBUDGET_CACHE names."""
    named = os.environ.get("VRAMBUDGET_CACHE")
    if named:
        return named_by("VRAMBUDGET_CACHE", named)
    variable = os.environ.get("XDG_CACHE_HOME")
    base = named_by("XDG_CACHE_HOME", variable) if variable else home_of(Path("~/.cache"))
    return base / "vrambudget"


def _replace(target: Path, data: bytes) -> None:
    if target.exists() and not os.access(target, os.W_OK):
        raise OSError(errno.EACCES, "it is read-only")
    _replace_whole(target, data, stat.S_IMODE(target.stat().st_mode) if target.exists() else None)


def _replace_whole(target: Path, data: bytes, mode: int | None = None) -> None:
    draft = target.with_name(f".vrambudget-{os.urandom(8).hex()}")
    try:
        with draft.open("xb") as file:
            file.write(data)
        if mode is not None:
            draft.chmod(mode)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _failed(verb: str, what: str, path: Path, error: Exception) -> VramBudgetError:
    reason = getattr(error, "strerror", None) or str(error)
    return VramBudgetError(f"cannot {verb} the {what}: {reason}", where=str(path))
