"""Who asked: Python frames and C++ callers of an event, and the allocator's history with them.

Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

import ctypes
import gc
import linecache
import os
import re
import sysconfig
from collections.abc import Callable, Iterable
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

_NODE = re.compile(r"(\w+?Backward\d*)")  # torch::autograd::generated::MmBackward0::apply
# What is computed otherwise on a real GPU, by how the innermost line of Python calls it.
_CALLS = {
    "convolution": re.compile(r"\bconv(?:olution|(?:_transpose)?[123]d)(?:\.default)?\("),
    "recurrence": re.compile(r"\b_VF\.(?:lstm|gru|rnn_tanh|rnn_relu)\("),
}
# torch.compile writes Python there, under names that are hashes.
_COMPILED = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "\0")
_HERE = str(Path(__file__).parent)
# What a user did not write: the standard library, and what pip installs.
_INSTALLED = re.compile(f"^{re.escape(sysconfig.get_path('stdlib'))}/|/(?:site|dist)-packages/")
_SPAWN = "multiprocessing/spawn.py"  # what a process of its own begins with, under `python -c`


def own_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the frames that are neither torch's nor this package's, outermost first."""
    frames = []
    while frame is not None:
        if not _is_library(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _is_library(filename: str) -> bool:
    return f"{os.sep}torch{os.sep}" in filename or filename.startswith((_HERE, "<frozen"))


def place(frame: FrameType) -> list[Any]:
    """Return where a frame is: file, line, function, the line's text."""
    name = frame.f_code.co_filename
    text = linecache.getline(name, frame.f_lineno).strip()
    return [_shown(name), frame.f_lineno, frame.f_code.co_name, text]


def _shown(filename: str) -> str:
    return "compiled" if filename.startswith(_COMPILED) else filename


def native_callers() -> list[str]:
    """Return the exported names of the C++ functions that are running on this thread."""
    libc = ctypes.CDLL(None)
    callers = (ctypes.c_void_p * 64)()
    names = []
    for i in range(libc.backtrace(callers, 64)):
        info = (ctypes.c_void_p * 4)()  # Dl_info: file, base, name of the symbol, its address
        if libc.dladdr(ctypes.c_void_p(callers[i]), info) and info[2]:
            names.append(ctypes.string_at(info[2]).decode(errors="replace"))
    return names


def addresses(tensors: Iterable[Any]) -> list[int]:
    """Return where the storages of those on the device begin."""
    found = []
    for tensor in tensors:
        try:
            local = getattr(tensor, "_local_tensor", tensor)  # a DTensor's shard on this rank
            if local.is_cuda:
                found.append(local.untyped_storage().data_ptr())
        except Exception:  # noqa: BLE001, S112 - not a tensor, or a wrapper without a storage
            continue
    return found


def parameters(torch: Any) -> dict[str, list[int]]:
    """Return where the parameters are that are alive."""
    tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
    return {"parameter": addresses(o for o in tensors if isinstance(o, torch.nn.Parameter))}


def history(
    trace: list[dict[str, Any]], module_of: Callable[[Any], str], *, cplusplus: bool
) -> dict[str, Any]:
    """Return the allocator's events as columns; stacks are listed once each, with their modules.

    "calls" has the kinds of operations that a real GPU computes otherwise, each with the line of
    Python outside torch from where it was first called.
    """
    stacks: dict[tuple[Any, str], int] = {}
    columns: dict[str, list[Any]] = {
        "action": [],
        "address": [],
        "bytes": [],
        "stream": [],
        "stack": [],
    }
    known: dict[int, int] = {}
    calls: dict[str, Any] = {}
    for event in trace:
        frames = event.get("frames") or []
        if id(frames) not in known:  # torch hands out one list for each stack
            stack = _stack(frames, cplusplus=cplusplus)
            python = (f for f in frames if f["filename"].endswith(".py"))
            inner = next((f for f in python if not f["filename"].startswith(_HERE)), None)
            for kind in _called(inner["filename"], inner["line"]) if inner else ():
                calls.setdefault(kind, stack[-1][:1])
            known[id(frames)] = stacks.setdefault((stack, module_of(frames)), len(stacks))
        columns["action"].append(event["action"])
        columns["address"].append(event.get("addr", event.get("device_free", 0)))
        columns["bytes"].append(event["size"])
        columns["stream"].append(event.get("stream", 0))
        columns["stack"].append(known[id(frames)])
    described = [stack for stack, _ in stacks]
    modules = [module for _, module in stacks]
    return {**columns, "stacks": described, "modules": modules, "calls": calls}


@cache
def _called(file: str, line: int) -> tuple[str, ...]:
    """Return the kinds of `_CALLS` in a line."""
    text = linecache.getline(file, line)
    return tuple(kind for kind, call in _CALLS.items() if call.search(text))


def _stack(frames: list[dict[str, Any]], *, cplusplus: bool) -> Any:
    """Return (autograd node, operation, Python lines from the inside out) of a stack."""
    python = [f for f in frames if f["filename"].endswith(".py") or f["filename"].startswith("<")]
    python = list(takewhile(lambda f: not f["filename"].endswith(_SPAWN), python))
    own = [f for f in python if not _is_library(f["filename"])]
    user = [f for f in own if not f["filename"].startswith(_COMPILED)]
    user = [f for f in user if not _INSTALLED.search(f["filename"])]
    lines = tuple((_shown(f["filename"]), f["line"], f["name"]) for f in own[:1] + user[:1])
    if not cplusplus:
        return ("", "", lines)
    names = [f["name"].split("(")[0] for f in frames]
    nodes = (m[1] for m in map(_NODE.search, names) if m)
    operations = [
        n.replace("at::_ops::", "").rsplit("::", 1)[0] for n in names if n.startswith("at::_ops::")
    ]
    return (next(nodes, ""), operations[-1] if operations else "", lines)
