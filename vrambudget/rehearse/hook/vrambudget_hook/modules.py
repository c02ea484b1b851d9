"""Which module of a model asked for memory, by the frames of the request.

A module is known by the code of its forward. A request's frames, from the outside in, walk down the
model; where several modules run the same code, the caller's line distinguishes them
(`self.c_proj(x)`). Numbers of layers are written as a star, and so is what stays undecided. Modules
are looked at twice, when backward first begins and at the end; nothing is kept of them but names,
and nothing happens in between.

Runs in the user's Python, 3.9 or later.

Not modelled: what runs in a module's other methods; backward, whose threads have no frames.
"""

from __future__ import annotations

import dis
import gc
import inspect
import linecache
import re
from collections.abc import Iterable, Iterator
from typing import Any

from .frames import addresses

_CHILD = re.compile(r"\bself\.(\w+)")

Path = tuple[str, ...]  # ("transformer", "h", "*", "mlp")


class ModulePaths:
    """The names of a process's modules and parameters."""

    def __init__(self) -> None:
        self.forwards: dict[str, dict[tuple[int, int], set[Path]]] = {}  # file, lines: who
        self.parameters: dict[int, str] = {}  # by address

    def look(self, torch: Any) -> None:
        """Learn the names of all modules that are alive."""
        alive = [o for o in gc.get_objects() if issubclass(type(o), torch.nn.Module)]
        inner = {id(child) for module in alive for child in module._modules.values()}  # noqa: SLF001 - no copy
        for root in alive:
            if id(root) in inner:
                continue
            for name, module in root.named_modules():
                self._add(module, _path(name))
            for name, parameter in root.named_parameters():
                for address in addresses([parameter]):
                    self.parameters[address] = ".".join(_path(name))

    def _add(self, module: Any, path: Path) -> None:
        forward: Any = getattr(type(module), "forward", None)  # a scripted module's class has none
        code = getattr(inspect.unwrap(forward), "__code__", None)
        if code is not None:
            lines = [line for _, line in dis.findlinestarts(code) if line]
            of_file = self.forwards.setdefault(code.co_filename, {})
            of_file.setdefault((code.co_firstlineno, max(lines)), set()).add(path)

    def of(self, frames: Iterable[dict[str, Any]]) -> str:
        """Return the path of the module that runs in these frames, innermost first, or ""."""
        here: set[Path] = {()}
        called: set[str] = set()
        for frame in reversed(list(frames)):
            found = self._running(frame)
            if not found:
                continue
            inside = {path for path in found for above in here if path[: len(above)] == above}
            named = {
                p for p in inside for a in here if p[len(a) : len(a) + 1] and p[len(a)] in called
            }
            here = named or inside or found
            called = set(_CHILD.findall(linecache.getline(frame["filename"], frame["line"])))
        return ".".join(_common(here))

    def _running(self, frame: dict[str, Any]) -> set[Path]:
        of_file = self.forwards.get(frame["filename"], {})
        line = frame["line"]
        return next((who for (first, last), who in of_file.items() if first <= line <= last), set())


def _path(name: str) -> Path:
    parts = name.split(".") if name else []
    return tuple("*" if part.isdigit() else part for part in parts)


def _common(paths: set[Path]) -> Iterator[str]:
    """Yield what paths have in common, part by part."""
    for parts in zip(*paths):  # noqa: B905 - Python 3.9 knows no strict=
        yield parts[0] if len(set(parts)) == 1 else "*"
