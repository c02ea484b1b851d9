"""Run pieces of work in parallel, one process per CPU, if the system can fork.

Elsewhere, in a process that may have no children, and for a single piece, they run one after the
other: a child that is not forked imports its parent's script, which must then be written for that.
The progress bar is tqdm's, on stderr, if that is a terminal; without tqdm it is a percentage.
"""

import multiprocessing
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from vrambudget.errors import VramBudgetError
from vrambudget.planning.forked import cpu_count

_ERASE_LINE = "\r\x1b[K"

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def side_by_side(
    function: Callable[[Piece], Result],
    pieces: Sequence[Piece],
    executor: Executor | None = None,
) -> Iterator[tuple[Piece, Result]]:
    """Yield (piece, function(piece)) as they are done, by an executor of the caller's if given."""
    if executor is not None:
        waiting = {executor.submit(function, piece): piece for piece in pieces}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            for future in waiting:
                future.cancel()
        return
    workers = min(cpu_count(), len(pieces))
    if workers < 2 or not _can_fork():  # noqa: PLR2004
        yield from ((piece, function(piece)) for piece in pieces)
        return
    with warnings.catch_warnings():
        # Python warns of threads in the parent; NumPy's wait for work and hold no lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        context = multiprocessing.get_context("fork")
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_interrupts)
        others = set(multiprocessing.active_children())
        try:
            waiting = {pool.submit(function, piece): piece for piece in pieces}
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BrokenProcessPool:
            raise VramBudgetError(
                "a process of the sweep was ended from outside",
                hint="where memory ran out, sweep fewer points at a time",
            ) from None
        except BaseException:  # an interrupt, or a caller that wants no more
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _leave_interrupts() -> None:
    """Leave Ctrl-C, which reaches every process of a terminal, to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _can_fork() -> bool:
    return (
        "fork" in multiprocessing.get_all_start_methods()
        and not multiprocessing.current_process().daemon
    )


@contextmanager
def progress(total: int, unit: str) -> Iterator[Callable[[int], Any]]:
    """Yield a function to call with how many more of `total` are done."""
    try:
        from tqdm import tqdm  # noqa: PLC0415 - an extra
    except ImportError:
        with _percentage(total, unit) as done:
            yield done
        return
    with tqdm(total=total, unit=f" {unit}", file=sys.stderr, disable=None, leave=False) as bar:
        yield bar.update


@contextmanager
def _percentage(total: int, unit: str) -> Iterator[Callable[[int], Any]]:
    """Yield what `progress` yields, with a line of text on a terminal."""
    is_seen, so_far = sys.stderr is not None and sys.stderr.isatty(), 0

    def done(more: int) -> None:
        nonlocal so_far
        so_far += more
        if is_seen:
            sys.stderr.write(f"\r{so_far:,} of {total:,} {unit}: {100 * so_far // total} %")
            sys.stderr.flush()

    try:
        yield done
    finally:
        if is_seen:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
