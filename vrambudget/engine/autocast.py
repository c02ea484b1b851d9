"""Autocast: which operands an operation reads as 16-bit copies, and how long the copies live.

A float32 leaf that requires a gradient is cast once per region, and the copy is cached until the
region ends; the linear layers that saved it keep it for backward. Everything else is cast at every
use.

Source: aten/src/ATen/autocast_mode.{h,cpp} (cached_cast, the lists of operations).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vrambudget.dtypes import DType, bfloat16, float32, float64
from vrambudget.engine.autograd import record
from vrambudget.engine.context import Autocast, context
from vrambudget.engine.tensor import Tensor, empty, empty_like
from vrambudget.tape.events import Purpose

_HAS_BF16 = (8, 0)  # compute capability


@contextmanager
def autocast(dtype: DType | None, *, caches: bool = True) -> Iterator[None]:
    """Like torch.autocast("cuda", dtype, cache_enabled=caches); None enters no region."""
    if dtype is bfloat16:
        _look_for_bf16()
    region = None if dtype is None else Autocast(dtype, caches=caches)
    before, context.autocast = context.autocast, region
    try:
        yield
    finally:
        context.autocast = before


def _look_for_bf16() -> None:
    """Make a tensor of one number, once, on a GPU that emulates bfloat16.

    Source: torch/cuda/__init__.py (is_bf16_supported, _check_bf16_tensor_supported).
    """
    if context.platform.compute_capability < _HAS_BF16 and not context.emulates_bf16:
        context.operation = "to_device"
        empty((1,), bfloat16)
        context.emulates_bf16 = True


def to(x: Tensor, dtype: DType) -> Tensor:
    """Return x as `dtype`: x itself if it already is, else a copy (Tensor.to)."""
    if x.dtype is dtype:
        return x
    context.operation = "to_copy"
    y = empty_like(x, dtype)
    source = x.dtype

    def backward(dy: Tensor) -> Tensor:
        return empty_like(dy, source)

    return record("to_copy", y, inputs=(x,), backward=backward)


def lower_precision(x: Tensor) -> Tensor:
    """Return x as the operations on autocast's lower-precision list read it."""
    region = context.autocast
    if region is None or x.dtype is region.dtype or not _is_eligible(x):
        return x
    # cached_cast: float32 leaves that require a gradient and are no views
    if region.caches and x.dtype is float32 and x.requires_grad and x.node is None:
        copy = region.cache.get(id(x))
        if copy is None:
            copy = region.cache[id(x)] = to(x, region.dtype)
            copy.storage.purpose = Purpose.AUTOCAST_COPIES
        return copy
    y = to(x, region.dtype)
    if x.storage.purpose is Purpose.WEIGHTS:
        y.storage.purpose = Purpose.AUTOCAST_COPIES
    return y


def full_precision(x: Tensor) -> Tensor:
    """Return x as the operations on autocast's float32 list read it."""
    return to(x, float32) if context.autocast is not None and _is_eligible(x) else x


def _is_eligible(x: Tensor) -> bool:
    """Whether autocast casts a tensor: float64 stays as it is (autocast_mode.h, is_eligible)."""
    return x.dtype.is_floating_point and x.dtype is not float64
