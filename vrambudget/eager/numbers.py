"""Numbers that a step reads back, which depend on weights: nobody knows them.

They may be printed, added up and averaged. Where the code branches on one it goes the ordinary way:
numbers are assumed to be 0.5: finite, the best loss so far, no accuracy and no loss to stop at.
Integers count as 0, a class that there is. The report names the lines. A size that such a number
decides is an error: `UnknownNumber` is no integer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from vrambudget.dtypes import DType
from vrambudget.traced.tensor import TORCH_DTYPE

NUMBER = 0.5
_LINES = 3  # that a report names

decided: dict[str, None] = {}
"""Lines where a number that nobody knows was branched on, or left as one of the host."""


assumed: dict[str, dict[str, None]] = {}
"""What else was assumed, as a report says it, and the lines, if it names any."""

ALL_KEPT = "masks that depend on weights or data are assumed to keep all of their elements"
SPREAD = "rows are assumed to spread evenly over what they choose (experts)"


class UnknownNumber(float):
    """A number that the host does not know; sums and products with it are not known either."""

    def __format__(self, spec: str) -> str:
        return "unknown"

    def __repr__(self) -> str:
        return "unknown"

    __str__ = __repr__
    __hash__ = float.__hash__


def ordinary(shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
    """Return what an unknown tensor is taken to hold, on the host; it lies in one element."""
    return torch.full(
        (), NUMBER if dtype.is_floating_point else 0, dtype=TORCH_DTYPE[dtype]
    ).expand(shape)


def listed(shape: tuple[int, ...]) -> Any:
    """Return lists of numbers that nobody knows."""
    return [listed(shape[1:]) for _ in range(shape[0])] if shape else UnknownNumber(NUMBER)


def note(places: Iterable[str | None]) -> None:
    """Note the line that reads a number which decides something, or may."""
    for line in places:
        if line:
            decided[line] = None


def notes() -> Iterator[str]:
    """Yield what a report says of such lines, and of what else was assumed."""
    for what, lines in assumed.items():
        yield f"{what}, at {_named(lines)}" if lines else what
    if decided:
        yield (
            f"numbers that depend on weights or data are read at {_named(decided)}: floats are"
            f" assumed to be {NUMBER}, others 0; what the code decides by them may differ"
        )


def _named(lines: Iterable[str]) -> str:
    """Return the first of some lines, and how many more there are."""
    named = [*lines]
    more = len(named) - _LINES
    return ", ".join(named[:_LINES]) + (f" and {more} more" if more > 0 else "")


def assume(what: str, line: str | None = None) -> None:
    """Note what is assumed, and where."""
    assumed.setdefault(what, {}).update({line: None} if line else {})


def _anew(_x: UnknownNumber, other: Any = None, *_: Any) -> Any:
    return NotImplemented if isinstance(other, torch.Tensor) else UnknownNumber(NUMBER)


def _deciding(name: str) -> Callable[..., Any]:
    compare = getattr(float, name)

    def decides(x: UnknownNumber, *others: Any) -> Any:
        frame = sys._getframe(1)
        if "/torch/" not in frame.f_code.co_filename:  # its optimizers pick numbers by size
            note([f"{frame.f_code.co_filename}, line {frame.f_lineno}"])
        return compare(x, *others)

    return decides


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow"):
    setattr(UnknownNumber, f"__{_name}__", _anew)
for _name in ("neg", "abs", "pos", "round", "floordiv", "rfloordiv", "mod", "rmod"):
    setattr(UnknownNumber, f"__{_name}__", _anew)
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int"):
    setattr(UnknownNumber, f"__{_name}__", _deciding(f"__{_name}__"))
