"""What cuDNN says of a convolution's workspace: looked up, else asked where it is installed.

`answers.json` has what cuDNN said of the patches of known image models, in usual batches, and of
this project's records; `python tests/cudnn_answers.py` makes it anew. All else is asked `apart`.
"""

import json
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

from vrambudget.cudnn.question import Convolution

UNKNOWN = -1
asked_without_driver = Event()
_FILE = Path(__file__).with_name("answers.json")


def workspace_bytes(
    what: Convolution, compute_capability: tuple[int, int], multiprocessors: int
) -> int:
    """Return the bytes of the engine that PyTorch takes, UNKNOWN where nobody says them."""
    from vrambudget.cudnn.library import installed  # noqa: PLC0415 - ctypes, for convolutions alone

    cudnn = installed()
    if cudnn is None or cudnn.version == _kept()["version"]:
        found: int = _kept()["answers"].get(key_of(what, compute_capability), UNKNOWN)
        if cudnn is None or found != UNKNOWN:
            return found
    from vrambudget.cudnn.apart import ask_apart  # noqa: PLC0415 - processes: not in a browser

    try:
        asked, drives = ask_apart(what, compute_capability, multiprocessors)
    except (EOFError, OSError):  # it does not start, or was ended
        return UNKNOWN
    if not drives:
        asked_without_driver.set()
    return UNKNOWN if asked is None else asked


def version() -> str:
    """Return the version of the cuDNN whose answers these are."""
    from vrambudget.cudnn.library import installed  # noqa: PLC0415 - as above

    cudnn = installed()
    return str(_kept()["version"]) if cudnn is None else cudnn.version


def key_of(what: Convolution, compute_capability: tuple[int, int]) -> str:
    """Return what a question is kept under."""
    major, minor = compute_capability
    sizes = (what.x, what.weight, what.stride, what.padding, what.dilation)
    words = ("x".join(map(str, numbers)) for numbers in sizes)
    order = "nhwc" if what.channels_last else "nchw"
    return f"{major}.{minor} {what.direction.value} {what.dtype} {' '.join(words)} {order}"


@cache
def _kept() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return kept
