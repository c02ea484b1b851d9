"""Keep our functions out of torch.compile's sight, and operators of higher order out of the hook's.

Runs in the user's Python, 3.9 or later.
"""

# ruff: noqa: SLF001 - dynamo's switch and these operators have no public names

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any


def hide_from_compiler(torch: Any, parts: Iterable[Any]) -> None:
    """Let torch.compile leave the frames of functions and of classes' methods alone."""
    frames = torch._C._dynamo.eval_frame
    for part in parts:
        if isinstance(part, type):
            hide_from_compiler(torch, vars(part).values())
        elif not isinstance(part, FunctionType):
            continue
        elif hasattr(frames, "skip_code"):  # until PyTorch 2.6
            frames.skip_code(part.__code__)
        else:
            skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
            strategy = frames._FrameExecStrategy(skip, default)
            frames.set_code_exec_strategy(part.__code__, strategy)


def pass_higher_orders(torch: Any, keys: Iterable[Any]) -> None:
    """Let operators of higher order fall through dispatch keys, where a fallback has no say."""
    ops = torch._ops
    keys = list(keys)
    getattr(ops, "_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS", []).extend(keys)
    for operator in ops._higher_order_ops.values():
        for key in keys:
            operator.fallthrough(key)
