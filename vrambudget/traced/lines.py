"""Where in the user's code something happens."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

_HIDDEN = ("torch/", "vrambudget/")


def stack() -> Iterator[tuple[str, int]]:
    """Yield file and line of each frame that runs, innermost first."""
    frame: Any = sys._getframe(1)  # noqa: SLF001 - the only way to it
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def own_line(places: Iterable[tuple[str, int]]) -> str | None:
    """Return the innermost line that is the model's or the user's code; innermost places first."""
    for file, line in places:
        name = file.replace("\\", "/")
        is_hidden = any(f"/{part}" in name for part in _HIDDEN)
        if not is_hidden and not (name.startswith("<") and not name.startswith("<ipython")):
            return f"{name}, line {line}"
    return None
