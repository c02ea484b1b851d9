"""Start the recorder in a rehearsed Python, then the environment's own sitecustomize.

Python imports a module of this name by itself when it starts; the rehearsal puts this folder first
in PYTHONPATH. It stays in `sys.path`, from which programs make the PYTHONPATH of their children.
"""

import contextlib
import importlib
import os
import sys
from pathlib import Path

if "VRAMBUDGET_REHEARSAL" in os.environ and __name__ == "sitecustomize":
    of_the_rehearsal = sys.modules.pop("sitecustomize")
    importlib.import_module("vrambudget_hook.entering").install(os.environ["VRAMBUDGET_REHEARSAL"])
    everywhere = sys.path[:]
    sys.path[:] = [folder for folder in sys.path if folder != str(Path(__file__).parent)]
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")
    sys.path[:] = everywhere
    sys.modules.setdefault("sitecustomize", of_the_rehearsal)
