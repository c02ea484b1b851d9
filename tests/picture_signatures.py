"""A component's call as a pipeline makes it: its arguments, and the sizes that are in them."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from inspect import Signature as Asked
from typing import Any

import torch

from vrambudget.dtypes import DType
from vrambudget.eager.mode import is_on_gpu
from vrambudget.errors import NotModelledError
from vrambudget.recording.sized import Size
from vrambudget.traced.known import Known, of_tensor
from vrambudget.traced.live import tensors_in
from vrambudget.traced.tensor import dtype_of
from vrambudget.training.inputs import Input

_COUNT = "_count"  # ends the name of how many items a list has


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor, or a whole number, stands in a call's arguments."""

    name: str


@dataclass(frozen=True, slots=True)
class Repeated:
    """A list of identical items, one for each picture: the item, and where their number stands."""

    item: Any
    count: str


@dataclass(slots=True)
class Signature:
    """The arguments of a call: tensors and whole numbers by name, and the rest as it is."""

    tree: Any
    tensors: dict[str, Any]
    sizes: dict[str, int]


@dataclass(slots=True)
class Component:
    """A component's call as a pipeline makes it."""

    name: str
    call: str
    signature: Signature
    weights: DType
    shapes: dict[str, Input] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Let the tensors go: their shapes are all that is asked for."""
        self.shapes = {
            name: Input(tuple(x.shape), dtype_of(x.dtype), keeps_dtype=True)
            for name, x in self.signature.tensors.items()
        }
        self.signature = replace(self.signature, tensors={})

    def inputs(self, dtype: DType) -> dict[str, Input]:
        """Return its inputs where it computes in another type than it was seen with."""
        return {
            name: x._replace(dtype=dtype) if x.dtype is self.weights else x
            for name, x in self.shapes.items()
        }

    def alone(self, other: "Component") -> "Component":
        """Return the call for one picture; `other` is the same call at another batch."""
        rows, more = (next(iter(c.shapes.values())).shape[0] for c in (self, other))

        def one(own: Input, again: Input) -> Input:
            both = [*zip(own.shape, again.shape, strict=True)]
            return own._replace(
                shape=tuple(n // rows if n != m and n * more == m * rows else n for n, m in both)
            )

        found = copy(self)
        found.shapes = {name: one(x, other.shapes[name]) for name, x in self.shapes.items()}
        numbers = self.signature.sizes.items()
        alone = {name: 1 if name.endswith(_COUNT) else n for name, n in numbers}
        found.signature = replace(self.signature, sizes=alone)
        return found

    def known(self) -> dict[str, Known]:
        """Return what a prompt's tokens and masks hold, as far as code reads it back."""
        return {
            name: of_tensor(torch.ones(x.shape, dtype=torch.long))
            for name, x in self.shapes.items()
            if not x.dtype.is_floating_point
        }


def signature_of(asked: Asked, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
    """Return a call's arguments by the names of its parameters."""
    found = dict(asked.bind(*args, **kwargs).arguments)
    for one in asked.parameters.values():
        if one.kind is one.VAR_KEYWORD:
            found |= found.pop(one.name, {})
    signature = Signature(None, {}, {})
    signature.tree = _placed(found, "", signature)
    return signature


def _placed(value: Any, name: str, into: Signature) -> Any:
    """Return a value with places in it; a closure that calls itself would hold the tensors."""
    if is_on_gpu(value):
        into.tensors[name] = value
        return Place(name)
    if type(value) in {int, Size}:
        into.sizes[name] = int(value)
        return Place(name)
    if isinstance(value, Mapping):
        return {k: _placed(x, f"{name}_{k}" if name else str(k), into) for k, x in value.items()}
    if isinstance(value, list) and _is_nested(value) and value == value[:1] * len(value):
        into.sizes[count := f"{name}{_COUNT}"] = len(value)
        return Repeated(_placed(value[0], f"{name}_0", into), count)
    if isinstance(value, list | tuple):
        found = [_placed(x, f"{name}_{i}", into) for i, x in enumerate(value)]
        return found if isinstance(value, list) else tuple(found)
    if value is None or isinstance(value, bool | float | str):
        return value
    raise NotModelledError(f"an argument {name} of type {type(value).__name__}")


def _is_nested(value: list[Any]) -> bool:
    """Whether a list has lists of numbers as its items."""
    nested = bool(value) and isinstance(value[0], list | tuple)
    return nested and not tensors_in(value[0], torch.Tensor)


class Caller(torch.nn.Module):
    """Calls a component as a pipeline does, with tensors by name."""

    def __init__(self, part: torch.nn.Module, component: Component) -> None:
        super().__init__()
        self.part = part
        self._call, self._tree = component.call, component.signature.tree
        self._sizes = component.signature.sizes

    def forward(self, **given: torch.Tensor) -> Any:
        """Return what the component returns.

        Of a list's identical items no comparison is noted (max(height, width) is no expression):
        pictures that are wide and tall are among the probes ("recorded_tall").
        """

        def filled(value: Any, number: type[int] = Size) -> Any:
            if isinstance(value, Place):
                own = given.get(value.name)
                return number(self._sizes[value.name]) if own is None else own
            if isinstance(value, Repeated):
                return [filled(value.item, int)] * self._sizes[value.count]
            if isinstance(value, dict):
                return {k: filled(x, number) for k, x in value.items()}
            if isinstance(value, list | tuple):
                return type(value)(filled(x, number) for x in value)
            return value

        return getattr(self.part, self._call)(**filled(self._tree))


def symbols_of(seen: Sequence[Component]) -> list[dict[str, int]]:
    """Return the sizes of each call by name: each varying dimension or number of its arguments."""
    columns: dict[str, tuple[int, ...]] = {}
    first = seen[0]
    for name, own in first.shapes.items():
        for dim in range(len(own.shape)):
            columns[f"{name}_{dim}"] = tuple(c.shapes[name].shape[dim] for c in seen)
    for name in first.signature.sizes:
        columns[f"{name}_"] = tuple(c.signature.sizes[name] for c in seen)
    kept: dict[tuple[int, ...], str] = {}
    for name, values in columns.items():
        if len(set(values)) > 1:
            kept.setdefault(values, name)
    return [{name: values[i] for values, name in kept.items()} for i in range(len(seen))]


def symbols_by_number(
    seen: Sequence[tuple[Component, str]], names: list[dict[str, int]]
) -> dict[str, str]:
    """Return which size each whole number among the arguments is."""
    found = {}
    for name in seen[0][0].signature.sizes:
        values = [c.signature.sizes[name] for c, _ in seen]
        for symbol in names[0]:
            if [own[symbol] for own in names] == values:
                found[name] = symbol
    return found


def whole_multiples(names: Sequence[Mapping[str, int]]) -> list[Any]:
    """Return guards that a size divides by the power of two that it did at all probes.

    A batch, the first dimension, may be any: guidance doubles those that were seen.
    """
    found = []
    for symbol in [symbol for symbol in names[0] if not symbol.endswith("_0")]:
        step = 1
        while all(own[symbol] % (2 * step) == 0 for own in names) and step < 64:
            step *= 2
        if step > 1:
            found.append([symbol, "%", str(step), True, "recorded at such sizes alone"])
    return found
