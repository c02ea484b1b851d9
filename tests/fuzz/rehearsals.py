"""Scripts that end badly, rehearsed: `PYTHONPATH=tests python -m fuzz --only rehearse`.

VRAMBUDGET_PYTHON names a Python that has a CUDA build of PyTorch. A case takes seconds, so that no
other kind of input has these among it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import vrambudget
from fuzz.checks import CLASS, is_text, strict

_LIMIT, _LONG = 5, 60  # seconds until a script that does not end is cut, and one that ends
_PATIENCE = 45  # seconds beyond that: twenty for its record, and what ends it
_MARK = "VRAMBUDGET_FUZZ_CASE"

_WORDS = ("''", "'é'", r"'\x1b]0;a\x07'", r"'\x9b2J'", r"'\u202ea'", r"'\ud800'", r"'\0'")
_WORDS += ("'a' * 5_000_000", "b'\\xff'", "None", "{1: {}}", "'<b>|`\\n# x'")

# What a script may do first.
_BEFORE = (
    "import signal as s\nfor n in {1, 2, 3, 13, 14, 15}: s.signal(n, s.SIG_IGN)",
    "import signal as s\ns.pthread_sigmask(s.SIG_BLOCK, s.valid_signals())",
    "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)",
    "import subprocess\nsubprocess.Popen(['sh', '-c', 'trap \"\" TERM HUP; sleep 600; sleep 9'])",
    "if not os.fork():\n    os.setsid()\n    os.fork()\n    time.sleep(600)\n    os._exit(0)",
    "if not os.fork():\n    os.kill(os.getpid(), 19)\n    os._exit(0)",
    "import threading\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "import threading\nthreading.Thread(target=lambda: 1 / 0).start()",
    "import atexit\natexit.register(lambda: 1 / 0)",
    "class D:\n    def __del__(self): raise ValueError('\\x1b[2J')\nd = D()",
    "sys.stdout.write('\\x1b]0;a\\x07\\x9b\\r\\x08')",
    "os.write(1, bytes(range(256)) * 9000)",
    "os.write(2, bytes(range(256)))",
    "os.close(1)",
    "os.close(2)",
    "sys.stdout = sys.stderr = None",
    "os.environ.clear()",
    "sys.path.clear()",
    "sys.excepthook = None",
    "sys.excepthook = lambda *_: 1 / 0",
    "os.makedirs('gone')\nos.chdir('gone')\nos.rmdir('../gone')",
    "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    "sys.setrecursionlimit(60)",
    "import builtins\nbuiltins.open = builtins.print = None",
    "import gc\ngc.disable()",
)
# How it may end, with the exit codes that may come of it; None: it does not end.
_ENDS: tuple[tuple[str, set[int] | None], ...] = (
    ("", {0}),
    ("raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})", {1}),
    ("raise type('E', (Exception,), {'__str__': lambda self: sys.exit(9)})", {1, 9}),
    ("raise type('E', (Exception,), {'__str__': lambda self: str(self)})", {1}),
    ("raise type('E', (Exception,), {'__str__': lambda self: 3, '__repr__': None})", {1}),
    ("raise type('E\\x1b[2J', (Exception,), {'__module__': None})({word})", {1}),
    ("raise type('E', (BaseException,), {})({word})", {1}),
    ("raise RuntimeError({word})", {1}),
    ("raise ExceptionGroup('a', [ValueError({word})] * 9)", {1}),
    ("try: 1 / 0\nexcept Exception as e: raise e from e", {1}),
    ("raise KeyboardInterrupt", {130}),
    ("raise MemoryError", {1}),
    ("raise StopIteration", {1}),
    ("raise GeneratorExit({word})", {1}),
    ("sys.exit({word})", {0, 1}),
    ("sys.exit(type('E', (), {'__str__': lambda self: 1 / 0})())", {1}),
    ("sys.exit(256)", {0}),
    ("sys.exit(-1)", {255}),
    ("sys.exit(2**70)", {255}),
    ("sys.exit(1.5)", {1}),
    ("sys.exit(7)", {7}),
    ("raise SystemExit(1, 2)", {1}),
    ("os._exit(5)", {5}),
    ("os._exit(0)", {0, 2}),
    ("os.abort()", {134}),
    ("import ctypes\nctypes.string_at(0)", {139}),
    ("def f(): return f()\nf()", {1}),
    ("sys.setrecursionlimit(10**9)\nexec('def f(n):\\n  return [*map(f, [n])]\\nf(1)')", {139, 1}),
    ("import threading\nthreading.Thread(target=time.sleep, args=(600,)).start()", None),
    ("import threading\nthreading.Thread(target=os._exit, args=(4,)).start()\ntime.sleep(99)", {4}),
    ("time.sleep(600)", None),
    ("while True: pass", None),
    ("while True:\n    try: time.sleep(600)\n    except BaseException: pass", None),
    ("import atexit\natexit.register(time.sleep, 600)", None),
    ("os.execvp('sh', ['sh', '-c', 'exit 6'])", {6}),
    ("os.fork()\nsys.exit(3)", {3}),
    ("if os.fork(): os._exit(8)\ntime.sleep(600)", {8}),
    ("import shutil\nshutil.rmtree(os.environ['VRAMBUDGET_FOLDER'])", {0, 2}),
    ("torch.empty(1 << 50, device='cuda')", {1}),
    ("del sys.modules['torch']\nsys.modules.clear()", {0, 1}),
    ("(", {1}),
    ("\0", {1}),
)
_DEADLY = (1, 2, 3, 6, 9, 10, 11, 13, 14, 15)
_STOPS = (19, 20)  # SIGSTOP, SIGTSTP


def ended(rng: Random) -> str:
    """Hold the rehearsal of a script that ends badly: in time, its exit code, nothing left."""
    text, codes = rng.choice(_ENDS)
    if rng.random() < 0.3:
        number = rng.choice((*_DEADLY, *_STOPS))
        text, codes = f"os.kill(os.getpid(), {number})\ntime.sleep(9)", {128 + number}
        codes = None if number in _STOPS else {0, 1} if number == signal.SIGPIPE else codes
    before = rng.sample(_BEFORE, rng.choice((0, 1, 1, 2)))
    uses = "torch" in text or rng.random() < 0.7
    codes = {*codes, 2} if codes and 0 in codes and not uses else codes  # nothing is recorded
    lines = ["import os, sys, time", "held = torch.empty(1000, device='cuda')" * uses]
    lines = ["import torch" * uses, *lines, *before, text.replace("{word}", rng.choice(_WORDS))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text("\n".join(lines) + "\n")
        try:
            return _rehearsed(rng, folder, None if before else codes, ends=codes is not None)
        except Exception as error:
            error.add_note("\n".join(lines))
            raise


def _rehearsed(rng: Random, folder: Path, codes: set[int] | None, *, ends: bool) -> str:
    """Rehearse the folder's script; `codes`: its own exit codes, where they are known."""
    (temporary := folder / "tmp").mkdir()
    report = folder / f"report{rng.choice(('.json', '.html', '.txt'))}"
    python = os.environ.get("VRAMBUDGET_PYTHON", sys.executable)
    limit = _LONG if ends else _LIMIT
    words = [sys.executable, "-m", "vrambudget", "rehearse", "--gpu=t4", f"--timeout={limit}"]
    root = str(Path(vrambudget.__file__).parent.parent)
    own = {"PYTHONPATH": root, "TMPDIR": str(temporary), _MARK: str(folder)}
    started = time.monotonic()
    done = subprocess.run(
        [*words, "-o", str(report), "--", python, "script.py"],
        cwd=folder,
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=limit + 2 * _PATIENCE,
        check=False,
    )
    assert time.monotonic() - started < limit + _PATIENCE
    err = done.stderr.decode(errors="replace")
    assert f"{root}/vrambudget/" not in err, err
    assert done.returncode >= 0, err
    assert not (left := _left(str(folder))), left
    assert not [*temporary.glob("vrambudget-*")]
    assert codes is None or done.returncode in codes, (done.returncode, err)
    if not report.exists():
        assert done.returncode == 2, done.returncode
        assert "\nerror: " in f"\n{err}", err
        return "refused"
    text = report.read_text()
    assert is_text(text), text
    if report.suffix == ".json":
        found = strict(text)
        assert found["exit_code"] == done.returncode
        assert not CLASS.search(json.dumps(found["warnings"])), found["warnings"]
        return str(found["ended"])
    return "reported"


def _left(name: str) -> list[str]:
    """Return the commands of processes that have the case's mark."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_MARK}={name}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
        except OSError:  # it is gone, or another user's
            continue
    return found


SLOW = {"rehearse": ended}
