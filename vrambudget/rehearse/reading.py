"""Read a command's output as it comes, and hand it on."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable

_LAST_SECONDS = 5.0  # for output that is still on its way once the command has ended


class Reader:
    """Calls `lines` with each line; `ready` is set once it returned True."""

    def __init__(self, lines: Callable[[str], bool], *, quiet: bool) -> None:
        self.lines, self.quiet, self.ready = lines, quiet, threading.Event()
        self.thread: threading.Thread | None = None

    def start(self, child: subprocess.Popen[bytes]) -> None:
        """Begin to read; not to read on would stop the command at a full pipe."""
        self.thread = threading.Thread(target=self._read, args=(child,), daemon=True)
        self.thread.start()

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None  # noqa: S101 - it was opened as a pipe
        with child.stdout as output:
            for line in output:
                self._take(line.decode(errors="replace"))

    def _take(self, text: str) -> None:
        if not self.quiet:
            with contextlib.suppress(OSError, ValueError):  # nobody reads us any more
                sys.stdout.write(text)
                sys.stdout.flush()
        if self.lines(text):
            self.ready.set()

    def finish(self) -> None:
        """Wait for what was written before the end."""
        if self.thread is not None:
            self.thread.join(_LAST_SECONDS)
