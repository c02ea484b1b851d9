"""Code that runs with the hook of a rehearsal in a process of its own, without a CUDA build."""

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from vrambudget.rehearse import hook

HOOK = Path(hook.__file__).parent

# Importing torch takes seconds: one process does, and each piece of code runs in a fork of it.
_FORKS = """
import json, os, sys, traceback
import torch
for line in sys.stdin:
    code, out, errors = json.loads(line)
    child = os.fork()
    if not child:
        status = 1
        try:
            for name, number in ((out, 1), (errors, 2)):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
            exec(compile(code, "<test>", "exec"), {"__name__": "__main__"})
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


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


def with_torch(code):
    """Run code as `python` does, where torch is imported already."""
    forks = _forks()
    with tempfile.TemporaryDirectory() as folder:
        out, errors = Path(folder) / "out", Path(folder) / "errors"
        forks.stdin.write(json.dumps([code, str(out), str(errors)]) + "\n")
        forks.stdin.flush()
        assert forks.stdout.readline().strip() == "0", errors.read_text()
        return out.read_text()


@cache
def _forks():
    return subprocess.Popen(
        [sys.executable, "-c", _FORKS],
        env={**os.environ, "PYTHONPATH": str(HOOK)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
