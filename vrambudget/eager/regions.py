"""Regions and scalers that torch switched off, because they were made on a machine without a GPU.

A region of autocast is on: it says nothing else. A scaler is on where float16 is computed in, as
scripts have it (`GradScaler(enabled=dtype == "float16")`).

Source: torch/amp/autocast_mode.py, torch/amp/grad_scaler.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from vrambudget.traced.tensor import GPU


def made_without_a_gpu(seen: set[torch.dtype]) -> Iterator[tuple[Any, str, Any]]:
    """Yield what lets them be as on a GPU: where, by which name, and what.

    `seen` gets the types that regions compute in.
    """
    region, scaler = torch.amp.autocast_mode.autocast, torch.amp.grad_scaler.GradScaler
    made: Any = region.__init__
    entered: Any = region.__enter__
    made_scaler: Any = scaler.__init__
    scale: Any = scaler.scale
    has_gpu = torch.cuda.is_available()

    def make(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self.made_in_step = True

    def is_off(self: Any) -> bool:
        return not (self._enabled or has_gpu or hasattr(self, "made_in_step"))

    def enter(self: Any) -> Any:
        before = self._enabled
        self._enabled = before or (self.device == GPU.type and is_off(self))
        seen.update({self.fast_dtype} if self._enabled else ())
        try:
            return entered(self)
        finally:
            self._enabled = before

    def scaled(self: Any, *args: Any, **options: Any) -> Any:
        if is_off(self) and torch.float16 in seen:
            made_scaler(self, GPU.type)
        return scale(self, *args, **options)

    def make_scaler(self: Any, *args: Any, **options: Any) -> None:
        made_scaler(self, *args, **options)
        self.made_in_step = True

    yield region, "__init__", make
    yield scaler, "__init__", make_scaler
    yield region, "__enter__", enter
    yield scaler, "scale", scaled
