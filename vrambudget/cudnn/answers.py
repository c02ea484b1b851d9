"""What cuDNN says of a convolution's workspace: looked up, else asked where it is installed.

`answers.json` has what cuDNN said of the patches of known image models, in usual batches, and of
this project's records; `python tests/cudnn_answers.py` makes it anew. It was asked where a driver
can be loaded, as on a GPU. Without one, cuDNN does not name engines that it compiles at run time:
a few convolutions, most of them over single pixels, are then said to take more than they do.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from vrambudget.cudnn.question import Convolution

UNKNOWN = -1
_FILE = Path(__file__).with_name("answers.json")


def workspace_bytes(
    what: Convolution, compute_capability: tuple[int, int], multiprocessors: int
) -> int:
    """Return the bytes of the engine that PyTorch takes, UNKNOWN where nobody says them."""
    # ctypes, which only convolutions need
    from vrambudget.cudnn.asking import ask  # noqa: PLC0415
    from vrambudget.cudnn.library import installed  # noqa: PLC0415

    cudnn = installed()
    if cudnn is None or cudnn.version == _kept()["version"]:
        found: int = _kept()["answers"].get(key_of(what, compute_capability), UNKNOWN)
        if cudnn is None or found != UNKNOWN:
            return found
    asked = ask(cudnn, what, compute_capability, multiprocessors)
    return UNKNOWN if asked is None else asked


def version() -> str:
    """Return the version of the cuDNN whose answers these are."""
    from vrambudget.cudnn.library import installed  # noqa: PLC0415 - as above

    cudnn = installed()
    return str(_kept()["version"]) if cudnn is None else cudnn.version


def is_asked_without_driver() -> bool:
    """Whether what is not kept is asked of a cuDNN that finds no driver."""
    from vrambudget.cudnn.library import has_driver, installed  # noqa: PLC0415 - as above

    return installed() is not None and not has_driver()


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
