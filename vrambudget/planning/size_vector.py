"""Sizes of many points at once: `points.size(batches) * 4` is four times every point's batch.

A rule of the engine computes with sizes and branches on them. A `SizeVector` stands for the size of
every point in that arithmetic; a comparison has a result only if all points agree:

    n > 3072        True or False, the same for all points
                    else Split: the caller runs the two groups of points separately

so no rule needs to know of it, and none can be wrong for some of the points. A result is created
once: sizes with equal values are one object, and a size that is the same for all points is an
`int`. So a model's second layer costs look-ups, and `==` between two sizes is mostly `is`.

Values stay below 2**52, where float64 is exact too; beyond that they are an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from vrambudget.engine.sizes import ManySizes, Split
from vrambudget.errors import VramBudgetError

Values = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
T = TypeVar("T")

_LARGEST = 2**52
_SEED = 1  # any: it decides which fingerprints values get


class Disagreement(Split):
    """A rule decides differently for the points of `mask` and for the others."""

    def __init__(self, points: Points, mask: Mask) -> None:
        super().__init__("the points disagree")
        self.points = points
        self.mask = mask

    def joined(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Return what `function` returns for each group, as sizes of all points."""
        count = len(self.mask)
        pieces = list(by_regime(function, args, count))
        first = _form(pieces[0][1])
        agree = np.zeros(count, np.bool_)
        for indices, result in pieces:
            agree[indices] = _form(result) == first
        if not agree.all():
            raise Disagreement(self.points, agree)
        return self._merged(pieces)

    def _merged(self, pieces: Sequence[tuple[Indices, Any]]) -> Any:
        """Return results of one form as one: tuples and dataclasses part by part."""
        template = pieces[0][1]
        if _parts(template) is None:
            values = np.empty(len(self.mask), np.int64)
            for indices, size in pieces:
                values[indices] = _values(size)
            return self.points.size(values)
        of_all = [(indices, _parts(result) or ()) for indices, result in pieces]
        merged = [
            self._merged([(indices, parts[i]) for indices, parts in of_all])
            for i in range(len(of_all[0][1]))
        ]
        return tuple(merged) if isinstance(template, tuple) else type(template)(*merged)


def by_regime(
    function: Callable[..., T], args: tuple[Any, ...], count: int
) -> Iterator[tuple[Indices, T]]:
    """Yield (indices, function(*args at these)) for groups of the `count` points that decide alike.

    Arrays, and `SizeVector`s in tuples or alone, are cut to the group; all else is as it is.
    """
    waiting = [np.arange(count)]
    while waiting:
        indices = waiting.pop()
        points = Points(len(indices))
        try:
            result = function(*(points.at(indices, arg) for arg in args))
        except Disagreement as split:
            waiting += indices[~split.mask], indices[split.mask]
        else:
            yield indices, result


class Points:
    """The points of one trace; knows every size that was made for them."""

    def __init__(self, count: int) -> None:
        weights = np.random.default_rng(_SEED).integers(0, 2**64, count, dtype=np.uint64)
        self._weights = weights | np.uint64(1)
        self._known: dict[tuple[str, int], SizeVector] = {}

    def at(self, indices: Indices, arg: Any) -> Any:
        """Return what an argument that is for more points is for these."""
        if isinstance(arg, tuple):
            return tuple(self.at(indices, part) for part in arg)
        if isinstance(arg, SizeVector):
            arg = arg.values
        return self.size(arg[indices]) if isinstance(arg, np.ndarray) else arg

    def size(self, values: Values) -> Any:
        """Return the size with these values, one for each point."""
        if values[0] == values[-1] and (values == values[0]).all():
            return values[0].item()
        key = values.dtype.kind, int(np.dot(values.view(np.uint64), self._weights))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = SizeVector(self, values)
        # Different values of one fingerprint are very unlikely; they just are not shared.
        return known if np.array_equal(known.values, values) else SizeVector(self, values)


def _binary(operation: Callable[[Any, Any], Any]) -> Callable[[SizeVector, Any], Any]:
    def method(self: SizeVector, other: Any) -> Any:
        return self.made(operation, other)

    return method


def _reflected(operation: Callable[[Any, Any], Any]) -> Callable[[SizeVector, Any], Any]:
    def swapped(a: Any, b: Any) -> Any:
        return operation(b, a)

    return _binary(swapped)


def _decision(operation: Callable[[Any, Any], Any]) -> Callable[[SizeVector, Any], bool]:
    def method(self: SizeVector, other: Any) -> bool:
        return self.decided(operation, other)

    return method


class SizeVector(ManySizes):
    """One number per point; behaves like an int or a float."""

    __slots__ = ("_largest", "_made", "_points", "values")

    def __init__(self, points: Points, values: Values) -> None:
        self.values = values
        self._points = points
        self._largest = max(-int(values.min()), int(values.max()))
        self._made: dict[tuple[Any, Any], Any] = {}
        _check_range(self._largest)

    def __repr__(self) -> str:
        return f"{self.values.min()} to {self.values.max()}"

    def made(self, operation: Callable[..., Any], other: Any = None) -> Any:
        """Return the size that an operation makes of this one and perhaps another."""
        key = operation, other
        result = self._made.get(key)
        if result is None:
            operands = (self.values,) if other is None else (self.values, _values(other))
            if operation is operator.mul:  # NumPy would wrap around
                _check_range(self._largest * getattr(other, "_largest", other))
            result = self._made[key] = self._points.size(operation(*operands))
        return result

    def decided(self, operation: Callable[[Any, Any], Any], other: Any) -> bool:
        """Return the result of a comparison for all points. Raises Split if they disagree."""
        key = operation, other
        result: bool | None = self._made.get(key)
        if result is None:
            result = self._made[key] = self._agreed(operation(self.values, _values(other)))
        return result

    def _agreed(self, answers: Mask) -> bool:
        if answers.all():
            return True
        if answers.any():
            raise Disagreement(self._points, answers)
        return False

    __hash__ = object.__hash__  # equal sizes are one object
    __eq__ = _decision(operator.eq)
    __ne__ = _decision(operator.ne)
    __lt__ = _decision(operator.lt)
    __le__ = _decision(operator.le)
    __gt__ = _decision(operator.gt)
    __ge__ = _decision(operator.ge)

    __add__ = __radd__ = _binary(operator.add)
    __mul__ = __rmul__ = _binary(operator.mul)
    __sub__, __rsub__ = _binary(operator.sub), _reflected(operator.sub)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __mod__, __rmod__ = _binary(operator.mod), _reflected(operator.mod)
    __lshift__, __rlshift__ = _binary(operator.lshift), _reflected(operator.lshift)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __neg__(self) -> Any:
        return self.made(operator.neg)

    def __ceil__(self) -> Any:
        return self.made(_ceil)

    def bit_length(self) -> Any:
        """Return the number of bits, as int's method."""
        return self.made(_bit_length)

    def __bool__(self) -> bool:
        return self.decided(operator.ne, 0)

    def __index__(self) -> int:
        # The same for all would be an int: the points of the first value go apart.
        raise Disagreement(self._points, self.values == self.values[0])


def _form(result: Any) -> Any:
    """Return how a result nests: results of one form differ in nothing but sizes."""
    parts = _parts(result)
    return None if parts is None else tuple(map(_form, parts))


def _parts(result: Any) -> tuple[Any, ...] | None:
    """Return what a tuple or a dataclass holds, None for a size."""
    if is_dataclass(result):
        return tuple(getattr(result, field.name) for field in fields(result))
    return result if isinstance(result, tuple) else None


def _values(size: Any) -> Any:
    return size.values if isinstance(size, SizeVector) else size


def _ceil(values: Values) -> Values:
    return np.ceil(values).astype(np.int64)


def _bit_length(values: Values) -> Values:
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)  # 0.5 <= fraction < 1


def _check_range(n: float) -> None:
    if n >= _LARGEST:
        raise VramBudgetError("a size is beyond 2**52", hint="sweep over smaller batches or blocks")
