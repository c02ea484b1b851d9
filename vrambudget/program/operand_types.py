"""Calls beside quantised layers under autocast: each is played in the type of its operands.

A linear layer's result has autocast's type. That of bitsandbytes' layers has their input's, float32
behind a norm, and so has what is made of it. An operation of `ops` sees that by itself; a call by
the general rule has the types that were recorded. Where its floating-point type is one, it is that
of what it reads, and stands for another here. A cast names a type that the recorded code took from
some tensor, of which the program says nothing: such programs are refused.

Source: bitsandbytes nn/modules.py (Linear4bit, Linear8bitLt), 0.50.
"""

from collections.abc import Iterator
from functools import reduce
from typing import Any

from vrambudget.dtypes import DType, promote
from vrambudget.engine.tensor import Tensor
from vrambudget.program.effects import General
from vrambudget.program.form import TYPES, Program
from vrambudget.program.values import Values

_CASTS = {"to", "float", "half", "bfloat16", "type", "type_as", "copy_"}
_BY_AUTOCAST = {"C", "A:W", "A:T"}


class TypedByOperands:
    """A call whose types follow its operands."""

    def __init__(self, general: General, row: list[Any], values: Values) -> None:
        self._recorded, self._row, self._values = general, row, values
        self._known: dict[DType, General] = {}
        names = _types_in(row)
        self._name = names.pop() if len(names) == 1 and row[1] is None else None

    def __call__(self, groups: list[Any]) -> list[Tensor]:
        """Run it on its operands; return its results."""
        found = {x.dtype: None for x in _tensors(groups) if x.dtype.is_floating_point}
        if not found or self._name is None:
            return self._recorded(groups)
        dtype = reduce(promote, found)
        if dtype not in self._known:
            values = self._values.with_type(self._name, dtype)
            self._known[dtype] = values.effects(self._row)
        return self._known[dtype](groups)


def has_no_cast(program: Program) -> bool:
    """Return whether no instruction names autocast's type where it may be another tensor's."""
    for word, value in program.code:
        if word == "op" and _BY_AUTOCAST & _types_in(value[2:]):
            return False
        if word == "call":
            row = program.effects[value[0]]
            names = _types_in(row)
            is_own = len(names) == 1 and row[0] not in _CASTS
            if row[1] is None and value[1] and _BY_AUTOCAST & names and not is_own:
                return False
    return True


def _types_in(value: Any) -> set[str]:
    """Return the names of the floating-point types in a row."""
    names = {text[1:] for text in _texts(value) if text[:1] == "~"}
    return {name for name in names if name not in TYPES or TYPES[name].is_floating_point}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _tensors(groups: list[Any]) -> Iterator[Tensor]:
    for value in groups:
        if isinstance(value, list):
            yield from _tensors(value)
        else:
            yield value
