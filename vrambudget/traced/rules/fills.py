"""Numbers written where a mask says, and where it says so."""

from collections.abc import Callable
from typing import Any

from vrambudget.engine.tensor import Tensor
from vrambudget.ops import elementwise, fill, selection
from vrambudget.traced.rules.table import on, writes


def _is_plain(x: Any, mask: Any, value: Any) -> bool:
    is_number = isinstance(value, int | float)
    return (
        is_number
        and isinstance(x, Tensor)
        and elementwise.broadcast(x.shape, mask.shape) == x.shape
    )


@on("masked_fill")
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """Return x with a number where the mask is set."""
    return fill.masked_fill(x, mask) if _is_plain(x, mask, value) else NotImplemented


@writes("masked_fill_")
def masked_fill_(x: Any, mask: Any, value: Any) -> Any:
    """Write a number where the mask is set."""
    return fill.masked_fill_(x, mask) if _is_plain(x, mask, value) else NotImplemented


class Places:
    """How many places of a mask are set: nobody's value, but who traces may assume it."""

    count: Callable[[tuple[int, ...]], int] | None = None


@on("nonzero")
def nonzero(x: Any, *, count: int | None, as_tuple: bool = False) -> Any:
    """Return the indices of the places that are set."""
    if count is None and Places.count is not None:
        count = Places.count(x.shape)
    if count is None:
        return NotImplemented
    return selection.nonzero(x, count) if as_tuple else selection.indices(x, count)
