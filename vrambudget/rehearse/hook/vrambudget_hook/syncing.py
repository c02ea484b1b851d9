"""SyncBatchNorm's counts: each rank has rows, as this one does, and its statistics are kept.

The layer gathers [mean, 1/std, count] of all ranks, and keeps those of ranks whose count is not 0:
a comparison of floating-point numbers that came through a collective.

Source: torch/nn/modules/_functions.py (SyncBatchNorm.forward).

Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any


def keep_all_ranks(values: Any) -> None:
    """Let the comparison be known to be true for each rank."""
    function = importlib.import_module("torch.nn.modules._functions").SyncBatchNorm
    overrides = importlib.import_module("torch.overrides")

    class Counted(overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
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
        with Counted():
            return plain(context, rows, *args)

    function.forward = staticmethod(forward)
