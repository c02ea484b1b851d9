"""What is known of a fake tensor's numbers: their value, or a guess, and how it is a view.

As `traced.known` works them out; a note lives as long as its tensor.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from vrambudget.eager import numbers
from vrambudget.traced.known import Known, worked_out
from vrambudget.traced.meta_fallback import mapped
from vrambudget.traced.tensor import dtype_of


class Note:
    """One tensor's, under the names that `traced.known` asks for."""

    def __init__(self, x: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(x.shape), dtype_of(x.dtype)
        self.known: Any = None
        self.guess: Any = None
        self.sign = 1  # of numbers that nobody knows
        self.spread = False  # the guess is that rows choose in turn, or follows from that
        self.base: Note | None = None
        self.remake: Any = None
        self.views: list[Any] = []

    @property
    def v(self) -> Note:
        """What has the type, which of traced tensors is the engine's."""
        return self

    def dim(self) -> int:
        """Return how many dimensions there are."""
        return len(self.shape)

    def numel(self) -> int:
        """Return how many numbers there are."""
        return prod(self.shape)

    def ordinary(self) -> torch.Tensor:
        """Return the value, or what it is assumed to be."""
        found = self.known or self.guess
        value: Any = None if found is None else found.value()
        return self.sign * numbers.ordinary(self.shape, self.dtype) if value is None else value


def guess(func: Any, given: Any, mode: Any) -> Known:
    """Return the value of a call's result if unknown arguments hold ordinary numbers."""

    def kept(x: torch.Tensor) -> Any:
        note = mode.traced_of(x)
        return x if note is None else Known(note.ordinary)

    args, kwargs = mapped(given, torch.Tensor, kept)
    return Known(lambda: worked_out(func, args, kwargs))


def sign_of(name: str, found: list[Any]) -> int:
    """Return the sign of a result: a descent's slope, the dot of a gradient and less of it, is < 0.

    LBFGS asks for it; the change of a gradient times the step that led there is above 0.
    """
    signs = prod(note_of(y).sign for y in found)
    is_product = name in {"mul", "dot"} and len(found) > 1
    return -signs if name == "neg" else signs if is_product else 1


_CHOOSING = {"topk": 1, "argmax": None, "max": 1}
"""What chooses along a dimension, and which of its results are the places."""


def choice(func: Any, number: int | None, x: torch.Tensor, found: list[Any]) -> Known | None:
    """Return the places [..., k] that rows of scores [..., E] choose if they do so in turn.

    As rehearsals spread tokens over experts (rehearse/hook/vrambudget_hook/assuming.py).
    """
    scores = found[0]
    *rows, wide = scores.shape or (1,)
    chosen = tuple(x.shape)
    is_along = bool(rows) and chosen[: len(rows)] == (*rows,) and scores.is_floating_point()
    if _CHOOSING.get(func.__name__, -1) != number or not is_along:
        return None
    return Known(lambda: (torch.arange(prod(chosen)) % wide).view(chosen))


def note_of(x: Any) -> Note:
    """Return a tensor's note."""
    note = vars(x).get("_numbers")
    if note is None:
        note = vars(x)["_numbers"] = Note(x)
    found: Note = note
    return found
