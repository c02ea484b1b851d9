"""Code that runs with the hook of a rehearsal in a process of its own, without a CUDA build."""

import os
import subprocess
import sys
from pathlib import Path

from vrambudget.rehearse import hook

HOOK = Path(hook.__file__).parent


def python(code, *arguments, **environment):
    """Run code that can import the hook; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(HOOK), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
