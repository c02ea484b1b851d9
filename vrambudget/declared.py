"""What a field declares, and what it keeps of a value: the value as its type, or a refusal.

    coerced(int | None, 3)                3
    coerced(tuple[str, ...], ["a"])       ("a",)      a JSON list is a tuple
    coerced(int, True)                    RefusedError: it should be a valid integer

Nothing is converted but lists, subclasses (a StrEnum is text, numpy.float64 a float), and an int
where a float is declared. Dataclasses are read from the dicts that `asdict` makes of them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import isfinite
from operator import ge, gt, le, lt
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Self, Union, get_args, get_origin
from typing import get_type_hints as hints_of

_COMPARED = {
    "ge": (ge, "greater than or equal to"),
    "gt": (gt, "greater than"),
    "le": (le, "less than or equal to"),
    "lt": (lt, "less than"),
}


class RefusedError(Exception):
    """A value that a field does not hold: what it should be, and which part of it is meant."""

    def __init__(self, rule: str, value: Any, path: tuple[object, ...] = ()) -> None:
        super().__init__(rule)
        self.rule, self.value, self.path = rule, value, path

    def within(self, *path: object) -> "RefusedError":
        """Return the same of a part of a larger value."""
        return RefusedError(self.rule, self.value, (*path, *self.path))


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

    def check(self, value: Any, written: Any) -> None:
        """Raise RefusedError, of what was written, where a value is out of bounds."""
        for name, bound in self.bounds.items():
            if name == "pattern":
                if re.search(bound, value) is None:
                    raise RefusedError(f"it should match {bound}", written)
            elif not _COMPARED[name][0](value, bound):
                raise RefusedError(f"it should be {_COMPARED[name][1]} {bound}", written)


class Before(NamedTuple):
    """In Annotated: what is done to a value before it is looked at; it may raise ValueError."""

    function: Callable[[Any], Any]


def coerced(annotation: Any, value: Any) -> Any:
    """Return a value as a field of this type keeps it. Raises RefusedError."""
    if annotation is Any or (type(value) is annotation and annotation is not float):
        return value
    look = _LOOKS.get(get_origin(annotation))
    if look is not None:
        return look(get_args(annotation), value)
    plain = _PLAIN.get(annotation)
    if plain is not None:
        return plain(value)
    if is_dataclass(annotation):
        return _built(annotation, value)
    if isinstance(value, annotation):
        return value
    raise RefusedError(f"it should be an instance of {annotation.__name__}", value)


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise RefusedError("it should be a valid integer", value)


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise RefusedError("it should be a valid number", value)
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if not isfinite(number):
        raise RefusedError("it should be a finite number", value)
    return number


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    raise RefusedError("it should be a valid string", value)


def _boolean(value: Any) -> bool:
    raise RefusedError("it should be a valid boolean", value)


def _none(value: Any) -> None:
    if value is not None:
        raise RefusedError("it should be None", value)


_PLAIN: Mapping[Any, Callable[[Any], Any]] = {
    int: _integer,
    float: _number,
    str: _text,
    bool: _boolean,
    NoneType: _none,
    None: _none,
}


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    kind = str if isinstance(value, str) else type(value)
    for choice in choices:
        if type(choice) is kind and choice == value:
            return choice
    *others, last = map(repr, choices)
    raise RefusedError(
        f"it should be {' or '.join([', '.join(others), last][not others :])}", value
    )


def _within(arguments: tuple[Any, ...], value: Any) -> Any:
    annotation, *marks = arguments
    found = value
    for mark in reversed(marks):
        if isinstance(mark, Before):
            try:
                found = mark.function(found)
            except ValueError as error:
                raise RefusedError(str(error), value) from None
    found = coerced(annotation, found)
    for mark in marks:
        if isinstance(mark, Declared):
            mark.check(found, value)
    return found


def _one_of(annotations: tuple[Any, ...], value: Any) -> Any:
    refused = []
    for annotation in annotations:
        try:
            return coerced(annotation, value)
        except RefusedError as error:
            refused.append(error)
    reported = [error for error, of in zip(refused, annotations, strict=True) if of is not NoneType]
    if len(reported) == 1:
        raise reported[0]
    deeper = [error for error in reported if error.path]
    if len(deeper) == 1:
        raise deeper[0]
    rules = dict.fromkeys(error.rule.removeprefix("it should be ") for error in reported)
    raise RefusedError(f"it should be {', or '.join(rules)}", value)


def _tuple(annotations: tuple[Any, ...], values: Any) -> Any:
    if not isinstance(values, tuple | list):
        raise RefusedError("it should be a valid tuple", values)
    if annotations[-1:] == (...,):
        annotations = (annotations[0],) * len(values)
    if len(annotations) != len(values):
        raise RefusedError(f"it should have {len(annotations)} parts", values)
    return tuple(_part(i, *pair) for i, pair in enumerate(zip(annotations, values, strict=True)))


def _part(key: object, annotation: Any, value: Any) -> Any:
    try:
        return coerced(annotation, value)
    except RefusedError as error:
        raise error.within(key) from None


def _mapping(annotations: tuple[Any, ...], values: Any) -> Any:
    if not isinstance(values, Mapping):
        raise RefusedError("it should be a valid dictionary", values)
    of_key, of_value = annotations
    return {_part(k, of_key, k): _part(k, of_value, value) for k, value in values.items()}


_LOOKS: Mapping[Any, Callable[[tuple[Any, ...], Any], Any]] = {
    Literal: _choice,
    Annotated: _within,
    Union: _one_of,
    UnionType: _one_of,
    tuple: _tuple,
    dict: _mapping,
    Mapping: _mapping,
}

_hints = cache(hints_of)


def _built(cls: Any, values: Any) -> Any:
    """Return the dataclass that `asdict` made these values of."""
    if not isinstance(values, Mapping):
        raise RefusedError("it should be an object", values)
    hints = _hints(cls)
    found = {}
    for field in fields(cls):
        if field.name in values:
            found[field.name] = _part(field.name, hints[field.name], values[field.name])
        elif field.default is MISSING:
            raise RefusedError("it should be there", None, (field.name,))
    return cls(**found)
