"""The PyTorch that a command will import: version, CUDA, and the libraries that it loads.

Found without importing torch: the command's own Python says where the package lies, and
`torch/version.py` and the library's ELF header say the rest.

A version of PyTorch is rehearsed when somebody has held it against records. Another one is refused
by name unless the caller insists (`any_torch`): the stubs' few structures may not be those
that it expects.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vrambudget.errors import VramBudgetError, did_you_mean
from vrambudget.files import open_file
from vrambudget.rehearse.elf import Library, read_library

TRIED = ("2.6", "2.8", "2.10", "2.11", "2.13", "2.14", "2.15")
"""Releases with which jobs were rehearsed; their records are in tests/records."""

UNKNOWN_WORKSPACES = ("libcufft", "libcusolver", "libcusparse")
"""Libraries that report the sizes of their workspaces to real GPUs only."""

_WITH_A_WORD = ("-W", "-X", "--check-hash-based-pycs")  # options of Python
INSTALL_HINT = "install PyTorch for CUDA (`pip install torch` on Linux); no GPU is needed"

_PROBE = """
import importlib.util, json, pathlib, runpy, sys
found = {"python": sys.executable, "prefix": sys.prefix}
for name in ("torch", "triton"):
    spec = importlib.util.find_spec(name)
    found[name] = next(iter(spec.submodule_search_locations or []), None) if spec else None
if found["torch"]:
    version = runpy.run_path(str(pathlib.Path(found["torch"]) / "version.py"))
    found["version"], found["cuda"] = str(version["__version__"]), version.get("cuda")
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """A CUDA build of PyTorch in some Python's environment."""

    python: str
    version: str  # "2.11.0+cu130"
    cuda: str  # "13.0"
    folder: Path
    triton: Path | None
    runtime: Library
    cublas: Library
    cublas_lt: Library
    cudnn: Library | None = None
    nccl: Library | None = None  # some builds contain it
    unknown_workspaces: tuple[Library, ...] = ()  # those of UNKNOWN_WORKSPACES that it loads

    @property
    def cuda_major(self) -> int:
        """The part of CUDA's version that decides the structures' layout."""
        return int(self.cuda.split(".")[0])


def find_torch(
    command: Sequence[str], prefix: Sequence[str] = (), *, any_torch: bool = False
) -> TorchBuild:
    """Return the PyTorch of the command's Python. Raises VramBudgetError without a fit one.

    After a `prefix` (`uv run`), it is that of the environment which the prefix enters.
    """
    if sys.platform != "linux":
        raise VramBudgetError(
            f"rehearsing needs Linux, and this is {sys.platform}",
            hint="on Windows it runs under WSL; `vrambudget estimate` runs everywhere",
        )
    words = (*prefix, "python") if prefix else (python_of(command),)
    found = _probe(words)
    python = " ".join(words)
    if not found.get("torch"):
        raise VramBudgetError("this Python has no PyTorch", where=python, hint=INSTALL_HINT)
    version, cuda = found["version"], found.get("cuda")
    if not cuda:
        raise VramBudgetError(
            f"this PyTorch ({version}) is not a CUDA build", where=python, hint=INSTALL_HINT
        )
    if ".".join(version.split(".")[:2]) not in TRIED and not any_torch:
        raise VramBudgetError(
            f"rehearsing was not tried with PyTorch {version}, only with {', '.join(TRIED)}",
            where=python,
            hint="add --any-torch to try it all the same",
        )
    return _open(found, version, cuda)


def own_python() -> str:
    """Return the Python that runs scripts and jobs: VRAMBUDGET_PYTHON's, or this one."""
    return os.environ.get("VRAMBUDGET_PYTHON", sys.executable)


def python_of(command: Sequence[str]) -> str:
    """Return the Python that a command starts: itself, that of its first line, or PATH's."""
    program = shutil.which(command[0])
    if program is None:
        raise VramBudgetError(
            f"no such command: {command[0]!r}", hint="write it as in a shell: python train.py …"
        )
    own = os.environ.get("VRAMBUDGET_PYTHON")
    if Path(program).name.startswith("python") or (own and program == shutil.which(own)):
        return program  # which may be a wrapper, a script of any kind
    with open_file(Path(program), "program") as file:
        first = file.readline(256)
    if first.startswith(b"#!"):
        words = first[2:].decode(errors="replace").split()
        if words and "python" in words[-1]:
            return shutil.which(words[-1]) or words[-1]
    return shutil.which("python") or sys.executable


def check_script(command: Sequence[str]) -> None:
    """Raise VramBudgetError where a Python would run a file that does not exist."""
    words = iter(command)
    if not Path(next(words)).name.startswith("python"):
        return
    for word in words:
        if not word.startswith("-"):
            if not os.path.exists(word):  # noqa: PTH110 - it raises nothing
                here = [path.name for path in Path().glob("*.py")]
                near = did_you_mean(word, here) or "the command runs in this folder"
                raise VramBudgetError(
                    f"there is no script {word!r}", where=str(Path.cwd()), hint=near
                )
            return
        if word == "-" or (not word.startswith("--") and set(word) & set("cm")):
            return
        if word in _WITH_A_WORD:
            next(words, None)


def _probe(python: Sequence[str]) -> dict[str, str]:
    if shutil.which(python[0]) is None:
        raise VramBudgetError(f"no such command: {python[0]!r}")
    done = subprocess.run(  # noqa: S603 - the user's own Python
        [*python, "-c", _PROBE], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise VramBudgetError(
            f"this Python does not start: {done.stderr.strip()[-200:]}", where=" ".join(python)
        )
    answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _open(found: dict[str, str], version: str, cuda: str) -> TorchBuild:
    folder = Path(found["torch"])
    torch_cuda = read_library(folder / "lib" / "libtorch_cuda.so")
    places = (*torch_cuda.folders, folder / "lib", Path(found["prefix"]) / "lib")
    places += tuple(Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p)
    runtime = _find("libcudart", torch_cuda, places)
    cublas = _find("libcublas", torch_cuda, places)
    linalg = folder / "lib" / "libtorch_cuda_linalg.so"
    users = [torch_cuda, *([read_library(linalg)] if linalg.exists() else [])]
    return TorchBuild(
        python=found["python"],
        version=version,
        cuda=cuda,
        folder=folder,
        triton=Path(found["triton"]) if found["triton"] else None,
        runtime=runtime,
        cublas=cublas,
        cublas_lt=_find("libcublasLt", torch_cuda, places, also=cublas),
        cudnn=_find("libcudnn", torch_cuda, places) if _loads("libcudnn", torch_cuda) else None,
        nccl=_find("libnccl", torch_cuda, places) if _loads("libnccl", torch_cuda) else None,
        unknown_workspaces=tuple(
            _find(name, user, places)
            for name in UNKNOWN_WORKSPACES
            for user in [u for u in users if _loads(name, u)][:1]
        ),
    )


def _loads(name: str, user: Library) -> bool:
    return any(soname.startswith((f"{name}.so", f"{name}-")) for soname in user.needed)


def _find(
    name: str, user: Library, places: tuple[Path, ...], also: Library | None = None
) -> Library:
    """Return the library that is asked for by that name; a wheel may have put a hash in it."""
    needed = user.needed + (also.needed if also else ())
    for soname in needed:
        if soname.startswith((f"{name}.so", f"{name}-")):
            for place in places:
                if (place / soname).exists():
                    return read_library(place / soname)
            raise VramBudgetError(
                f"{soname} is missing, which this PyTorch needs",
                where=str(user.path),
                hint="reinstall PyTorch with its nvidia-* packages",
            )
    raise VramBudgetError(
        f"this PyTorch does not load {name}: it cannot be rehearsed", where=str(user.path)
    )
