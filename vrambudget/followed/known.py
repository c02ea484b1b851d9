"""Values that the host knows: of integers, masks and positions that it made itself.

A value is worked out when something reads it back (`.item()`, `if mask.all()`), by torch on the
CPU, from how it was made. What depends on weights or activations is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vrambudget.followed.counted import Counted
from vrambudget.followed.derived import mapped

_MOST = 2**22  # elements that are worked out


class Known:
    """How a value was made, and the value once it was asked for."""

    __slots__ = ("_made", "_value")

    def __init__(self, made: Callable[[], Any]) -> None:
        self._made: Callable[[], Any] | None = made
        self._value: Any = None

    def value(self) -> Any:
        """Return the value, worked out at the first call."""
        if self._made is not None:
            self._value, self._made = self._made(), None
        return self._value


def of_tensor(x: torch.Tensor) -> Known:
    """Return the value of a tensor on the CPU."""
    return Known(lambda: x)


def of(func: Any, given: Any, mode: Any) -> Known | None:
    """Return the value of a call's result, if those of all its arguments are known."""
    found = _arguments(given, mode, {})
    return None if found is None else Known(lambda: _worked_out(func, *found))


def write(func: Any, given: Any, target: Counted, mode: Any) -> None:
    """Let a tensor that a call wrote into have its new value.

    What it is a view of, and other views of that, are not known from then on.
    """
    before, value = target.known, None
    if before is not None:
        copy = Known(lambda: before.value().clone())
        found = _arguments(given, mode, {id(target): copy})
        value = found and Known(lambda: (_worked_out(func, *found), copy.value())[1])
    root = target if target.base is None else target.base
    for other in (root, *(view() for view in root.views)):
        if other is not None:
            other.known = None
    target.known = value


def _arguments(given: Any, mode: Any, instead: dict[int, Known]) -> tuple[Any, Any] | None:
    """Return a call's arguments with values in the place of tensors, None if one is not known.

    `instead` has those of some, by their tensors' ids.
    """
    missing = False

    def kept(x: torch.Tensor) -> Any:
        nonlocal missing
        counted = mode.counted_of(x)
        if counted is None:
            return x
        value = instead.get(id(counted), counted.known)
        missing = missing or value is None or counted.numel() > _MOST
        return value

    args, kwargs = mapped(given, torch.Tensor, kept)
    return None if missing else (args, kwargs)


def made(func: Any, given: Any) -> Known:
    """Return the value of what a call makes out of nothing, or of tensors on the CPU."""
    args, kwargs = given
    return Known(lambda: _worked_out(func, args, kwargs))


def part(value: Known | None, i: int) -> Known | None:
    """Return the value of one of several results."""
    return None if value is None else Known(lambda: value.value()[i])


def _worked_out(func: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = mapped((args, kwargs), Known, lambda known: known.value())
    args, kwargs = mapped((args, kwargs), torch.device, lambda _: torch.device("cpu"))
    if "device" in kwargs:
        kwargs["device"] = "cpu"
    with torch.no_grad():
        return func(*args, **kwargs)


def read_back(x: Counted) -> torch.Tensor | None:
    """Return the value of a counted tensor, None if the host does not know it."""
    if x.known is None or x.numel() > _MOST:
        return None
    value: torch.Tensor = x.known.value()
    return value
