"""Which layers are identical: what they consist of is compared, but not their place."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.tape.events import Storage

_PLAIN = {int, float, str, bool, type(None)}
_PLACES = {"number", "path", "stack", "layer_idx", "played"}
"""What a module has of its place in the model."""


def kinds_of(layers: Sequence[Module]) -> tuple[list[int], list[list[Parameter]]]:
    """Return which layers are identical, a number for each kind, and each layer's parameters."""
    kinds, every = list[int](), list[list[Parameter]]()
    numbers: dict[tuple[object, ...], int] = {}
    for layer in layers:
        kind, parameters = list[object](), list[Parameter]()
        _describe(layer, kind, parameters)
        kinds.append(numbers.setdefault(tuple(kind), len(numbers)))
        every.append(parameters)
    return kinds, every


def _describe(value: Any, kind: list[object], parameters: list[Parameter]) -> None:
    """Add to `kind` what is equal for identical layers, and a layer's parameters."""
    of = value.__class__
    if of in _PLAIN:
        kind.append(value)
    elif isinstance(value, Tensor):
        kind += value.shape, value.dtype, value.requires_grad
        if isinstance(value, Parameter):
            parameters.append(value)
    elif isinstance(value, Module) or is_dataclass(of):
        kind.append(of)
        for name, item in _attributes(value):
            kind.append(name)
            _describe(item, kind, parameters)
    elif of in (list, tuple, dict):
        kind.append(tuple(value) if of is dict else len(value))
        for item in value.values() if of is dict else value:
            _describe(item, kind, parameters)
    else:
        kind.append(context.tape.sizes[value.index] if of is Storage else id(value))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a module consists of, but for its place, or a dataclass (a weight in 4 bit)."""
    if isinstance(value, Module):
        yield from (item for item in value.__dict__.items() if item[0] not in _PLACES)
    else:
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))
