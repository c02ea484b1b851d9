"""A server's own start as the answer of `serve`: rehearsed once, and kept by what decides it.

What is kept lies in the cache folder, by the engine's version, the model's configuration, the
options, the GPU and this package's version.
"""

import hashlib
import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vrambudget.config.gpus import Gpu
from vrambudget.config.settings import Settings
from vrambudget.errors import VramBudgetError
from vrambudget.files import RESULT_BYTES, cache_folder, read_kept, write_kept
from vrambudget.rehearse.options import RehearsalOptions
from vrambudget.rehearse.report import render
from vrambudget.rehearse.run import rehearse_command
from vrambudget.rehearse.servers.command import beside_python
from vrambudget.rehearse.torch_build import python_of
from vrambudget.serving.gguf_known import find_served
from vrambudget.serving.starting import server_words

_ENGINES = ("vllm", "sglang")
_KEPT = ("ready", "failed", "out of memory")  # the same again, each time


def rehearsed(
    model: object, gpu: Gpu, engine: str, options: Settings, say: Callable[[str], None]
) -> tuple[bool, dict[str, Any], str]:
    """Return whether the engine starts, its figures, and the report. Raises VramBudgetError."""
    if engine not in _ENGINES or not isinstance(model, str):
        raise VramBudgetError(
            f"{engine} is not rehearsed", where="--rehearse", hint=f"{', '.join(_ENGINES)} are"
        )
    command = beside_python(server_words(model, engine, options))
    kept = _place(command, model, gpu, engine)
    if (before := kept_start(kept)) is not None:
        say(f"rehearsed before: {kept}")
        return before
    result = rehearse_command(command, gpu, RehearsalOptions(quiet=True, say=say))
    start = result.server
    assert start is not None  # noqa: S101 - the command is a server's
    values = {**asdict(start), "starts": start.ready, "engine": f"{engine} {start.version}"}
    found: dict[str, Any] = {"starts": start.ready, "values": values, "text": render(result)}
    if result.ended in _KEPT:
        write_kept(kept, json.dumps(found).encode())
    return start.ready, values, found["text"]


def kept_start(place: Path) -> tuple[bool, dict[str, Any], str] | None:
    """Return what was rehearsed before; None where that is not there, or is broken."""
    with suppress(ValueError, RecursionError):
        match json.loads(read_kept(place, RESULT_BYTES) or "null"):
            case {"starts": bool(starts), "values": dict(values), "text": str(text)}:
                return starts, values, str(text)
    return None


def _place(command: tuple[str, ...], model: str, gpu: Gpu, engine: str) -> Path:
    """Return the file of this start."""
    from vrambudget import __version__  # noqa: PLC0415 - the package imports this module

    given = {
        "engine": (engine, _version(command, engine)),
        "model": (find_served(model).values, str(Path(model).resolve())),
        "options": command[1:],
        "gpu": asdict(gpu),
        "package": __version__,
    }
    name = hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()
    return cache_folder() / "servers" / f"{name[:32]}.json"


def _version(command: tuple[str, ...], engine: str) -> str:
    """Return the version of the engine that the command starts."""
    code = f"import importlib.metadata as m; print(m.version({engine!r}))"
    python = python_of(command)
    done = subprocess.run(  # noqa: S603 - the user's own Python
        [python, "-c", code], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise VramBudgetError(
            f"this Python has no {engine}",
            where=python,
            hint=f"pip install {engine}, or name the Python that has it with VRAMBUDGET_PYTHON",
        )
    return done.stdout.strip()
