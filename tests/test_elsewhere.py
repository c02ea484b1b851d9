"""Where POSIX and the extras end: modules are imported as Windows would, plans need no NumPy."""

import subprocess
import sys
from pathlib import Path

import pytest

import vrambudget

PACKAGE = Path(vrambudget.__file__).parent
CODE = """
import importlib, os, signal, sys
import asyncio, http.server, subprocess, tempfile, zipfile
EXTRAS = ("torch transformers numpy peft accelerate lightning pandas matplotlib huggingface_hub"
          " IPython yaml pynvml deepspeed trl triton bitsandbytes").split()
POSIX = "fcntl resource pwd grp termios tty posix curses readline pty".split()
for name in (*EXTRAS, *POSIX):
    sys.modules[name] = None
for name in dir(signal):
    if name.startswith(("SIG", "pthread", "sig", "setitimer", "alarm")) and name not in (
        "SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV", "SIG_DFL", "SIG_IGN",
        "Signals", "Handlers", "Sigmasks", "signal",
    ):
        delattr(signal, name)
for name in ("fork", "killpg", "geteuid", "getuid", "O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC",
             "register_at_fork", "setsid", "WNOHANG", "sched_getaffinity", "mkfifo"):
    vars(os).pop(name, None)
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS:
            sys.exit(f"{module}: {error!r}")
"""


def test_every_module_is_imported_without_what_only_posix_has():
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(PACKAGE.rglob("*.py"))
        if "hook" not in path.parts and path.name != "__main__.py"
    ]
    ended = subprocess.run(
        [sys.executable, "-c", CODE, *modules], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


PLAIN = """
import sys
from vrambudget.cli import main
sys.modules["torch"] = sys.modules["numpy"] = None
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("gpu", ["12GB", "2xt4 --goal full"])
def test_a_plain_install_plans(gpu):
    words = f"plan gpt2 --block 64 --batch 2 --gpu {gpu}".split()
    ended = subprocess.run(
        [sys.executable, "-c", PLAIN, *words], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
