"""What names, sizes, types and rates in a program stand for."""

import re
from collections.abc import Callable, Mapping
from copy import copy
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

from vrambudget.dtypes import DType
from vrambudget.engine.autocast import to
from vrambudget.engine.sizes import ManySizes
from vrambudget.engine.tensor import empty
from vrambudget.errors import VramBudgetError
from vrambudget.expressions import value as size_of
from vrambudget.ops.elementwise import ACTIVATIONS
from vrambudget.program.effects import General
from vrambudget.program.form import TYPES

_MODULE = re.compile(r"[a-z_]+(\.[a-z_]+)*\.[a-z]\w*")
_BESIDE: dict[str, Any] = {"engine.autocast.to": to, "creation.empty": empty}


def operation_of(found: Any) -> Callable[..., Any]:
    """Return what is known to be called."""
    called: Callable[..., Any] = found
    return called


@cache
def operation(name: str) -> Callable[..., Any]:
    """Return an operation of `ops` by its name. Raises VramBudgetError where there is none."""
    found: Any
    if name in _BESIDE:
        return operation_of(_BESIDE[name])
    if _MODULE.fullmatch(name):
        home, _, own = name.rpartition(".")
        try:
            found = getattr(import_module(f"vrambudget.ops.{home}"), own, None)
        except ImportError:
            found = None
        if isinstance(found, FunctionType) and found.__module__ == f"vrambudget.ops.{home}":
            return operation_of(found)
    raise VramBudgetError(f"{name[:60]!r} is no operation of this version")


class Values:
    """What sizes, types, layouts, rates and functions in a program stand for."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        weights: DType,
        autocast: DType | None,
        said: Mapping[str, Any] | None = None,
        tables: DType | None = None,
    ) -> None:
        self._sizes, self._said = sizes, said or {}
        self._types = TYPES | {"W": weights, "C": autocast or weights, "T": tables or weights}
        self._autocast = autocast
        self._known: dict[str, int] = {}

    def at(self, **sizes: int) -> "Values":
        """Return the same with further sizes."""
        found = copy(self)
        found._sizes, found._known = {**self._sizes, **sizes}, {}  # noqa: SLF001 - its own
        return found

    def with_type(self, name: str, dtype: DType) -> "Values":
        """Return the same where a type's name stands for another."""
        found = copy(self)
        found._types = {**self._types, name: dtype}  # noqa: SLF001 - its own
        return found

    def of_text(self, text: str) -> Any:
        """Return what a coded text is."""
        kind, rest = text[0], text[1:]
        if kind == "=":
            if rest not in self._known:
                self._known[rest] = size_of(rest, self._sizes)
            return self._known[rest]
        if kind == "~":
            return self._type(rest)
        if kind == "%":
            return self._said[rest]
        if kind == "^":
            words = rest.split()
            number = words[1].lstrip("xdy")
            return (words[0], int(number), *map(int, words[2:]))
        raise LookupError(text[:60])

    def function(self, name: str) -> Callable[..., Any]:
        """Return an operation, or the activation that a key names."""
        home, _, key = name.partition(".")
        return ACTIVATIONS[self._said[key]] if home == "activation" else operation(name)

    def _type(self, name: str) -> DType:
        if name.startswith("A:") and name not in self._types:
            return self._autocast or self._types[name[2:]]
        if name not in self._types:
            raise VramBudgetError(f"{name[:20]!r} is no type")
        return self._types[name]

    def of(self, value: Any, *, shapes: bool = False) -> Any:
        """Return a value; with `shapes`, lists of numbers are tuples."""
        if isinstance(value, str):
            return self.of_text(value) if value[:1] in "=~^%" and value else value
        if isinstance(value, list):
            found = [self.of(x, shapes=shapes) for x in value]
            is_shape = shapes and all(type(x) is int or isinstance(x, ManySizes) for x in found)
            return tuple(found) if is_shape else found
        if isinstance(value, dict):
            ((kind, inner),) = value.items()
            shape, dtype, strides = inner
            del kind
            own = tuple(self.of(strides)) if strides is not None else None
            return tuple(self.of(shape)), self.of(dtype), own
        return value

    def effects(self, row: list[Any]) -> General:
        """Return a call by the general rule at these sizes."""
        return General([row[0], row[1], *(self.of(x, shapes=True) for x in row[2:])])
