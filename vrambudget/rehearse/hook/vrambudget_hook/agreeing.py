"""What all ranks have alike, though the others sent nothing: counts of rows, lists of lengths.

SyncBatchNorm gathers [mean, 1/std, count] of all ranks, and keeps those of ranks whose count is not
0: a comparison of floating-point numbers that came through a collective. Each rank has rows, as
this one does. DeepSpeed checks that all ranks have the same lists: they still go to the GPU and
back, and only the disagreement with what was read is not raised.

Source: torch/nn/modules/_functions.py (SyncBatchNorm.forward); deepspeed/runtime/zero/utils.py.
Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

CHECKS = "deepspeed.runtime.zero.utils"  # the module that has them
_NAMES = ("assert_lst_len_same_as_other_ranks", "assert_ints_same_as_other_ranks")


def agree(module: ModuleType) -> None:
    """Let the checks pass, before other modules take them."""
    for name in _NAMES:
        if hasattr(module, name):
            setattr(module, name, _agreed(getattr(module, name)))


def _agreed(check: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(check)
    def checked(ints: Any) -> None:
        try:
            check(ints)
        except RuntimeError as error:  # as running out of memory is
            if "disagreement" not in str(error):
                raise

    return checked


def keep_all_ranks(values: Any) -> None:
    """Let SyncBatchNorm's comparison be known to be true for each rank."""
    function = importlib.import_module("torch.nn.modules._functions").SyncBatchNorm
    overrides = importlib.import_module("torch.overrides")

    class KnownTrue(overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
        def __torch_function__(self, called: Any, _: Any, args: Any = (), given: Any = None) -> Any:
            out = called(*args, **(given or {}))
            if getattr(called, "__name__", "") in ("ge", "__ge__") and values.eligible(out):
                values.hold_all(out, 1, true=True)
            return out

    plain = function.forward

    @functools.wraps(plain)
    def forward(context: Any, rows: Any, *args: Any) -> Any:
        if not rows.numel():
            return plain(context, rows, *args)
        with KnownTrue():
            return plain(context, rows, *args)

    function.forward = staticmethod(forward)
