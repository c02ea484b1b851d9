"""Values that the host knows: of integers, masks and positions that it made itself.

A value is worked out when something reads it back (`.item()`, `if mask.all()`), by torch on the
CPU, from how it was made. What depends on weights or activations is not known.

A view knows how it is made of its base (`remake`): where one of them is written into, the base's
value is written into on the CPU, and what all views show of it follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vrambudget.dtypes import bool_
from vrambudget.errors import NotModelledError
from vrambudget.traced.meta_fallback import mapped
from vrambudget.traced.tensor import REHEARSE, TORCH_DTYPE, TracedTensor

_MOST, _MOST_OF_MASKS = 2**25, 2**28  # elements that are worked out
_OF_SHAPES = {
    **dict.fromkeys(("expand_as", "view_as", "reshape_as", "type_as"), 1),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones"), 0),
}
"""Functions, by name, of whose argument in this place only the shape and the type decide."""


_FINITE = {"isfinite": True, "isnan": False, "isinf": False}
"""What finite numbers answer, as weights and activations are taken to be."""


class Known:
    """How a value was made, and the value once it was asked for.

    `is_given`: it is the job's inputs', or made of them alone: no weight that nobody wrote decides.
    """

    __slots__ = ("_made", "_value", "is_given")

    def __init__(self, made: Callable[[], Any], *, is_given: bool = False) -> None:
        self._made: Callable[[], Any] | None = made
        self.is_given = is_given
        self._value: Any = None

    def value(self) -> Any:
        """Return the value, worked out at the first call."""
        if self._made is not None:
            self._value, self._made = self._made(), None
        return self._value


def of_tensor(x: torch.Tensor) -> Known:
    """Return the value of a tensor on the CPU."""
    return Known(lambda: x, is_given=True)


def of(func: Any, given: Any, mode: Any) -> Known | None:
    """Return the value of a call's result, if those of all its arguments are known."""
    found = _arguments(given, mode, _by_shape(func, given[0], mode))
    if found is None:
        return None
    values: list[Known] = []
    mapped(found, Known, values.append)
    return Known(lambda: worked_out(func, *found), is_given=all(x.is_given for x in values))


def if_finite(func: Any, given: Any) -> Known | None:
    """Return what a call answers of numbers that are finite, None for one that asks no such."""
    if func.__name__ not in _FINITE:
        return None
    answer, shape = _FINITE[func.__name__], tuple(given[0][0].shape)
    return Known(lambda: torch.full(shape, answer))


def _by_shape(func: Any, args: Any, mode: Any) -> dict[int, Known]:
    """Return a value of the same shape for an argument of which nothing else decides."""
    place = _OF_SHAPES.get(func.__name__)
    traced = None if place is None or len(args) <= place else mode.traced_of(args[place])
    if traced is None:
        return {}
    one, shape = torch.zeros((), dtype=TORCH_DTYPE[traced.v.dtype]), tuple(traced.shape)
    return {id(traced): Known(lambda: one.expand(shape))}


Remake = Callable[[torch.Tensor], torch.Tensor]
"""From a base's value to what a view shows of it."""


class _Place(Known):
    """Where a base's value is put when a view of it is made again."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def put(self, value: Any) -> None:
        """Let it be this value."""
        self._value, self._made = value, None


def remake(func: Any, given: Any, x: Any, number: int | None, mode: Any) -> Remake | None:
    """Return how a view that a call made of `x` is made of the base of `x`; None if not known.

    `number`: which of several results the view is.
    """
    before, place = x.remake, _Place()
    found = _arguments(given, mode, {**_by_shape(func, given[0], mode), id(x): place})
    if found is None or (x.base is not None and before is None):
        return None

    def again(base: torch.Tensor) -> torch.Tensor:
        place.put(base if before is None else before(base))
        result = worked_out(func, *found)
        shown: torch.Tensor = result if number is None else result[number]
        return shown

    return again


def write(func: Any, given: Any, target: Any, mode: Any) -> None:
    """Let a tensor that a call wrote into have its new value, and so its base and all views."""
    if not func.__name__.endswith("_") and "out" not in given[1]:
        return  # `.to()`, `.contiguous()`: what gives its argument back where nothing is to do
    root = target if target.base is None else target.base
    root.known = _written(func, given, target, root, mode)
    for view in [view() for view in root.views]:
        if view is not None:
            view.known = _seen(root.known, view.remake)


def _written(func: Any, given: Any, target: Any, root: Any, mode: Any) -> Known | None:
    """Return the base's value with what a call writes into one of its views, or into itself."""
    before, shown, place = root.known, target.remake, _Place()
    found = _arguments(given, mode, {id(target): place})
    if before is None or found is None or (target is not root and shown is None):
        return None

    def value() -> torch.Tensor:
        base: torch.Tensor = before.value().clone()
        view = base if shown is None else shown(base)
        if view.untyped_storage().data_ptr() != base.untyped_storage().data_ptr():
            raise NotModelledError("a write through this view is not traced", hint=REHEARSE)
        place.put(view)
        worked_out(func, *found)
        return base

    return Known(value)


def _seen(base: Known | None, shown: Remake | None) -> Known | None:
    return None if base is None or shown is None else Known(lambda: shown(base.value()))


def _arguments(given: Any, mode: Any, instead: dict[int, Known]) -> tuple[Any, Any] | None:
    """Return a call's arguments with values in the place of tensors, None if one is not known.

    `instead` has those of some, by their tensors' ids.
    """
    missing = False

    def kept(x: torch.Tensor) -> Any:
        nonlocal missing
        traced = mode.traced_of(x)
        if traced is None:
            return x
        value = instead.get(id(traced), traced.known)
        missing = missing or value is None or _is_too_large(traced)
        return value

    args, kwargs = mapped(given, torch.Tensor, kept)
    return None if missing else (args, kwargs)


def _is_too_large(traced: Any) -> bool:
    elements: int = traced.numel()
    return elements > (_MOST_OF_MASKS if traced.v.dtype is bool_ else _MOST)


def made(func: Any, given: Any) -> Known | None:
    """Return the value of what a call makes out of nothing, or of tensors on the CPU."""
    if func is torch.empty:  # a weight's to be
        return None
    args, kwargs = given
    return Known(lambda: worked_out(func, args, kwargs))


def part(value: Known | None, i: int) -> Known | None:
    """Return the value of one of several results."""
    return None if value is None else Known(lambda: value.value()[i])


def worked_out(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what a call on the CPU gives, with values in the place of what is known."""
    args, kwargs = mapped((args, kwargs), Known, lambda known: known.value())
    args, kwargs = mapped((args, kwargs), torch.device, lambda _: torch.device("cpu"))
    if "device" in kwargs:
        kwargs["device"] = "cpu"
    if func is torch.Tensor.cuda:  # a move alone: the value is the same
        return args[0]
    if func is torch.Tensor.to and isinstance((*args, None)[1], str | int):  # a device's name
        args = (args[0], "cpu", *args[2:])
    with torch.no_grad():
        return func(*args, **kwargs)


def read_back(x: TracedTensor) -> torch.Tensor | None:
    """Return the value of a traced tensor, None if the host does not know it."""
    if x.known is None or _is_too_large(x):
        return None
    value: torch.Tensor = x.known.value()
    return value


def places(x: TracedTensor | None, *, by_inputs: bool = True) -> int | None:
    """Return how many places of a traced tensor are set, None where the host does not know it.

    `by_inputs`: nor where anything decides but the job's inputs.
    """
    if x is None or x.known is None or (by_inputs and not x.known.is_given):
        return None
    value = read_back(x)
    return None if value is None else int(value.count_nonzero())


def brought_to_host(func: Any, given: Any, mode: Any) -> torch.Tensor | None:
    """Return what `.cpu()` and `.to("cpu")` give of a tensor whose value the host knows.

    A scalar on the GPU that picks from a tensor of the host is read back, too.
    """
    args, _ = given
    if func is torch.Tensor.__getitem__:
        place = mode.traced_of(args[1]) if isinstance(args[1], torch.Tensor) else None
        of_host = place is not None and not place.dim() and mode.traced_of(args[0]) is None
        value = read_back(place) if place is not None and of_host and args[0].is_cpu else None
        return None if value is None else args[0][value]
    x = mode.traced_of(args[0]) if "cpu" in named_devices(func, *given) else None
    return None if x is None else read_back(x)


def named_devices(func: Any, args: Any, kwargs: Any) -> set[str]:
    """Return the kinds of devices that `.to`, `.cuda` or `.cpu` names; a number is a GPU's."""
    if func in (torch.Tensor.cuda, torch.Tensor.cpu):
        return {func.__name__}
    named = (*args[1:], kwargs.get("device")) if func is torch.Tensor.to else ()
    found = {torch.device(x).type for x in named if isinstance(x, torch.device | str)}
    return found | {"cuda" for x in named if type(x) is int}
