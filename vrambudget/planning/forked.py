"""Do pieces of work in forked processes, one per CPU: only what they find is sent back.

A forked process has all that its parent knows (a tape of a million events), so nothing is sent
there; the parent works along. Where the system cannot fork, other threads run, or a child is lost,
pieces are missing from what comes back, and the caller does them itself.
"""

import os
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

Found = TypeVar("Found")

_MOST = 2**8  # pieces: the pipe that says what is left has a byte for each


def cpu_count() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def may_fork() -> bool:
    """Return whether this process can have children that go on from where it is."""
    return sys.platform in {"linux", "darwin"} and threading.active_count() == 1


def forked(pieces: Sequence[Callable[[], Found]]) -> list[Found]:
    """Return what the pieces return, in no order; none where there is nobody to share them with."""
    others = min(cpu_count(), len(pieces)) - 1
    if others < 1 or len(pieces) > _MOST or not may_fork():
        return []
    left, end = os.pipe()
    os.write(end, bytes(range(len(pieces))))
    os.close(end)
    children = [_child(pieces, left) for _ in range(others)]
    found = _work(pieces, left)
    os.close(left)
    for process, answer in children:
        with os.fdopen(answer, "rb") as sent, suppress(EOFError, pickle.UnpicklingError):
            found += pickle.load(sent)  # noqa: S301 - from our own child
        os.waitpid(process, 0)
    return found


def _child(pieces: Sequence[Callable[[], Found]], left: int) -> tuple[int, int]:
    """Start a process that works along; return its number and where its answer is read."""
    answer, end = os.pipe()
    if process := os.fork():
        os.close(end)
        return process, answer
    try:  # from here on in the child, which ends without what its parent's end would do
        with os.fdopen(end, "wb") as sent:
            pickle.dump(_work(pieces, left), sent)
    finally:
        os._exit(0)


def _work(pieces: Sequence[Callable[[], Found]], left: int) -> list[Found]:
    """Do pieces as long as any are left: whoever reads a piece's byte does it."""
    found = []
    while number := os.read(left, 1):
        found.append(pieces[number[0]]())
    return found
