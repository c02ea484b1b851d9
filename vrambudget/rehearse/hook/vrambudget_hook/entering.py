"""Getting into a rehearsed Python: the stub libraries are loaded at once, the recorder after torch.

Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .agreeing import CHECKS, agree
from .recorder import Recorder
from .servers import JIT, SHARED, WORKERS, compile_nothing, note_shared, watch


class ModuleFinder(importlib.abc.MetaPathFinder):
    """Calls `then(module)` when it has been imported, however often it was looked for before."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the real module, and run our part after its own."""
        if fullname != self.name:
            return None
        others = (finder for finder in sys.meta_path[:] if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_then(module: ModuleType) -> None:
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self.then(module)

            spec.loader.exec_module = run_then  # type: ignore[method-assign]
        return spec


def install(plan: str) -> None:
    """Prepare this process: the parent's plan is JSON."""
    # Started in the background by a shell, we ignore SIGINT, and so would the script, which we end
    # by it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    recorder = Recorder(json.loads(plan))
    recorder.load_libraries()
    os.register_at_fork(after_in_child=recorder.forked)
    sys.modules["vrambudget_hook"].mark = recorder.mark  # type: ignore[attr-defined]
    sys.meta_path.insert(0, ModuleFinder("torch", recorder.torch_imported))
    sys.meta_path.insert(0, ModuleFinder(CHECKS, agree))
    sys.meta_path.insert(0, ModuleFinder(JIT, compile_nothing))
    sys.meta_path.insert(0, ModuleFinder(SHARED, lambda module: note_shared(module, recorder)))
    for name in WORKERS:
        sys.meta_path.insert(0, ModuleFinder(name, lambda module: watch(module, recorder)))
