"""What a field of `Settings` declares, and values that plainly are what it holds.

Plain is what needs no judging: an int for an int, within its bounds, one of a Literal's choices, a
tuple of names. Nothing is refused here. What is not plain may be right still, and pydantic says so,
or says what is wrong: it is asked through the same annotations, whose marks say what they mean.
"""

import re
from collections.abc import Callable, Mapping
from operator import ge, gt, le, lt
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Self, Union, get_args, get_origin

_COMPARED = {"ge": ge, "gt": gt, "le": le, "lt": lt}


class UnclearError(Exception):
    """A value that is not plainly right."""


class Declared:
    """A field: its type, default and description; in Annotated, bounds of a value."""

    __slots__ = ("annotation", "bounds", "default", "default_factory", "description")

    def __init__(
        self,
        default: Any = ...,
        default_factory: Callable[[], Any] | None = None,
        description: str | None = None,
        bounds: Mapping[str, Any] = {},
    ) -> None:
        self.default, self.default_factory = default, default_factory
        self.description, self.bounds = description, bounds
        self.annotation: Any = Any

    def of(self, annotation: Any) -> Self:
        """Return the field as one of this type."""
        self.annotation = annotation
        return self

    @property
    def has_default(self) -> bool:
        """Whether the field may be left out."""
        return self.default is not ... or self.default_factory is not None

    def get_default(self) -> Any:
        """Return what the field is if it is left out."""
        return self.default if self.default_factory is None else self.default_factory()

    def holds(self, value: Any) -> bool:
        """Whether a value is within the bounds."""
        return all(
            re.search(bound, value) is not None
            if name == "pattern"
            else _COMPARED[name](value, bound)
            for name, bound in self.bounds.items()
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Pass the bounds to pydantic."""
        schema = inner = handler(source)
        while inner["type"].startswith("function"):
            inner = inner["schema"]
        inner.update(self.bounds)
        return schema


class Before(NamedTuple):
    """In Annotated: what is done to a value before it is looked at; it may raise ValueError."""

    function: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Have pydantic do it, too."""
        from pydantic_core.core_schema import (  # noqa: PLC0415 - pydantic is here
            no_info_before_validator_function,
        )

        return no_info_before_validator_function(self.function, handler(source))


def taken(annotation: Any, value: Any) -> Any:
    """Return a value as a field of this type keeps it. Raises UnclearError for what is not plain.

    Raises ValueError where something before the look says no.
    """
    kind = type(value)
    if annotation is Any or (annotation is kind and kind is not float):
        return value
    if annotation is float and kind in (int, float) and value - value == 0:
        return float(value)
    look = _LOOKS.get(get_origin(annotation))
    if look is None:
        raise UnclearError
    return look(get_args(annotation), value)


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    if any(type(choice) is type(value) and choice == value for choice in choices):
        return value
    raise UnclearError


def _within(arguments: tuple[Any, ...], value: Any) -> Any:
    annotation, *marks = arguments
    for mark in reversed(marks):
        if isinstance(mark, Before):
            value = mark.function(value)
    value = taken(annotation, value)
    if all(mark.holds(value) for mark in marks if isinstance(mark, Declared)):
        return value
    raise UnclearError


def _one_of(annotations: tuple[Any, ...], value: Any) -> Any:
    for annotation in annotations:
        try:
            return taken(annotation, value)
        except (UnclearError, ValueError):
            continue
    raise UnclearError


def _tuple(annotations: tuple[Any, ...], values: Any) -> Any:
    if type(values) is not tuple:
        raise UnclearError
    if annotations[-1:] == (...,):
        annotations = (annotations[0],) * len(values)
    if len(annotations) != len(values):
        raise UnclearError
    return tuple(map(taken, annotations, values))


def _dict(annotations: tuple[Any, ...], value: Any) -> Any:
    if annotations == (str, Any) and type(value) is dict and all(type(k) is str for k in value):
        return dict(value)
    raise UnclearError


_LOOKS: Mapping[Any, Callable[[tuple[Any, ...], Any], Any]] = {
    Literal: _choice,
    Annotated: _within,
    Union: _one_of,
    UnionType: _one_of,
    tuple: _tuple,
    dict: _dict,
}
