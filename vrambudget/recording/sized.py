"""Sizes that note each comparison that modelling code makes on them.

A branch on a size is the one thing that a recording cannot show: it sees one side. So while a model
is recorded, the sizes that its code reads, of tensors and of its configuration, are `Size`s: whole
numbers that stay such through arithmetic, and report what they are compared with.
"""

import math
import operator
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

_SQUARES = re.compile(r"(image_size|pixels)\*\*2//(\d+)")
_FLOORS = re.compile(r"(image_size|pixels)//(\d+)")


class Comparison(NamedTuple):
    """One comparison: where it stands, its operands, and how it came out."""

    place: str
    operator: str
    left: int | float
    right: int | float
    outcome: bool


_listening: list[Callable[[Comparison], None]] = []


def report_to(report: Callable[[Comparison], None] | None) -> None:
    """Let comparisons be reported from now on, or (None) no longer."""
    _listening[:] = [] if report is None else [report]


class Size(int):
    """A whole number of the model's: comparisons on it are reported."""

    __slots__ = ()

    __hash__ = int.__hash__

    def __bool__(self) -> bool:
        """Compare with zero, as `if size:` does."""
        return _compared("!=", operator.ne, self, 0)

    def __index__(self) -> int:
        """Return the number itself."""
        return int.__index__(self)


def _compared(sign: str, compare: Callable[[Any, Any], bool], left: Any, right: Any) -> bool:
    outcome = bool(compare(int(left), int(right) if isinstance(right, int) else right))
    if _listening:
        frame = sys._getframe(2)  # noqa: SLF001 - whose comparison it is
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("vrambudget.", "unittest", "collections")):
            place = f"{module}:{frame.f_lineno}"
            plain = int(right) if isinstance(right, int) else right
            _listening[0](Comparison(place, sign, int(left), plain, outcome))
    return outcome


def _comparing(sign: str, compare: Callable[[Any, Any], bool]) -> Any:
    def method(self: Size, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return _compared(sign, compare, self, other)

    return method


def _counting(compute: Callable[..., Any]) -> tuple[Any, Any]:
    def method(self: Size, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        return _sized(compute(int(self), int(other)))

    def reflected(self: Size, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        return _sized(compute(int(other), int(self)))

    return method, reflected


def log2(number: Any, _log2: Callable[[Any], float] = math.log2) -> float:
    """Return math.log2 of a number; of a size, whether it is a power of two is a comparison.

    ALiBi's slopes are as many as the nearest power of two of the heads, which no expression says.
    """
    if type(number) is Size:
        _compared("&", operator.and_, number, int(number) - 1)
    return _log2(number)


def _sized(value: Any) -> Any:
    return Size(value) if type(value) is int else value


for _sign, _name in (
    ("<", "lt"),
    ("<=", "le"),
    (">", "gt"),
    (">=", "ge"),
    ("==", "eq"),
    ("!=", "ne"),
):
    setattr(Size, f"__{_name}__", _comparing(_sign, getattr(operator, _name)))
for _name in ("add", "sub", "mul", "floordiv", "mod"):
    _method, _reflected = _counting(getattr(operator, _name))
    setattr(Size, f"__{_name}__", _method)
    setattr(Size, f"__r{_name}__", _reflected)
Size.__neg__ = lambda self: Size(-int(self))  # type: ignore[method-assign]
Size.__abs__ = lambda self: Size(abs(int(self)))  # type: ignore[method-assign]


def whole_patches(text: str) -> list[Any]:
    """Return guards of a side whose square is divided: by what it is, and the side itself."""
    sides = {key for key, _ in _SQUARES.findall(text)}
    parts = {(key, int(n)) for key, n in _FLOORS.findall(text) if key in sides}
    parts |= {(key, math.isqrt(int(n))) for key, n in _SQUARES.findall(text)}
    return [[key, "%", str(n), True, "whole patches"] for key, n in sorted(parts)]
