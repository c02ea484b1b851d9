"""Numbers that a step reads back for its log: `loss.item()`.

They depend on weights, so nobody knows them. They may be printed, added up and averaged; where one
would decide what the code does next, that is an error.
"""

from __future__ import annotations

import sys
from typing import Any

from vrambudget.errors import NotModelledError
from vrambudget.followed.counted import REHEARSE

_PICKS_A_NUMBER = "_adafactor.py"
"""torch's Adafactor takes the larger of two numbers: which one, no memory depends on."""


class Unknown(float):
    """A number that the host does not know; sums and products with it are not known either."""

    def __format__(self, spec: str) -> str:
        return "unknown"

    def __repr__(self) -> str:
        return "unknown"

    __str__ = __repr__
    __hash__ = float.__hash__


def _anew(_x: Unknown, *_: Any) -> Unknown:
    return Unknown(1.0)


def _decides(_x: Unknown, *_: Any) -> bool:
    if sys._getframe(1).f_code.co_filename.endswith(_PICKS_A_NUMBER):  # noqa: SLF001
        return True
    raise NotModelledError(
        "a number that depends on weights or data decides what the code does", hint=REHEARSE
    )


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "round"):
    setattr(Unknown, f"__{_name}__", _anew)
for _name in ("neg", "abs", "pos"):
    setattr(Unknown, f"__{_name}__", _anew)
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "floordiv", "mod"):
    setattr(Unknown, f"__{_name}__", _decides)
