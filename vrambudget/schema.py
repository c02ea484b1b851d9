"""Values checked against annotations: strictly, and every mistake is found.

    int, float, str, bool, Any       a value of that type; true is no number, an int is a float too
    Literal["a", "b"], X | None      one of these
    tuple[X, ...], tuple[X, Y]       a list or a tuple
    dict[str, X], Mapping[str, X]    a dict with such values
    Annotated[X, Rule(ge=1)]        bounds, a pattern, or a function that goes first
    a dataclass                      a dict of its fields

    checked(value, annotation, problems)    the value; what is wrong with it is added to `problems`

Written here and not taken from a library: what people hand in is flat, and a library's import alone
would take as long as an estimate.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

Path = tuple[str | int, ...]

MISSING_KEY, UNKNOWN_KEY = "it is missing", "it is not known"

_KINDS: Mapping[type, str] = {
    int: "a valid integer",
    float: "a valid number",
    str: "a valid string",
    bool: "a valid boolean",
    NoneType: "None",
}


@dataclass(slots=True)
class Problem:
    """A mistake: where it is, the rule that is broken, and what came."""

    path: Path
    rule: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds for a value besides its type: `Annotated[int, Rule(ge=1)]`.

    `before` makes of what came what is checked; it raises ValueError with the rule that is broken.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    pattern: str | None = None
    before: Callable[[Any], Any] | None = None

    def broken_by(self, value: Any) -> Iterator[str]:
        """Yield what a value of the right type is against."""
        if self.ge is not None and not value >= self.ge:
            yield f"it should be greater than or equal to {self.ge}"
        if self.gt is not None and not value > self.gt:
            yield f"it should be greater than {self.gt}"
        if self.le is not None and not value <= self.le:
            yield f"it should be less than or equal to {self.le}"
        if self.lt is not None and not value < self.lt:
            yield f"it should be less than {self.lt}"
        if self.pattern is not None and not re.search(self.pattern, value):
            yield f"it should match {self.pattern!r}"


def checked(value: Any, annotation: Any, problems: list[Problem], path: Path = ()) -> Any:
    """Return the value as the annotation has it; mistakes are added to `problems`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _ruled(value, annotation, problems, path)
    if origin in _CHECKS:
        return _CHECKS[origin](value, get_args(annotation), problems, path)
    if is_dataclass(annotation):
        return _record(value, annotation, problems, path)
    return value if annotation is Any else _plain(value, annotation, problems, path)


def _ruled(value: Any, annotation: Any, problems: list[Problem], path: Path) -> Any:
    inner, *rules = get_args(annotation)
    came, known = value, len(problems)
    for rule in rules:
        if rule.before is not None:
            try:
                value = rule.before(value)
            except ValueError as error:
                problems.append(Problem(path, str(error), came))
                return value
    value = checked(value, inner, problems, path)
    if len(problems) == known:
        broken = next((text for rule in rules for text in rule.broken_by(value)), None)
        if broken is not None:
            problems.append(Problem(path, broken, came))
    return value


def _one_of(value: Any, kinds: Sequence[Any], problems: list[Problem], path: Path) -> Any:
    """Check against a union: of what no member takes, the first one's problems are told."""
    if value is None and NoneType in kinds:
        return None
    first: list[Problem] = []
    for kind in kinds:
        found: list[Problem] = []
        result = checked(value, kind, found, path)
        if not found:
            return result
        first = first or found
    problems += first
    return value


def _choice(value: Any, choices: Sequence[Any], problems: list[Problem], path: Path) -> Any:
    if any(value.__class__ is choice.__class__ and value == choice for choice in choices):
        return value
    *others, last = map(repr, choices)
    told = f"{', '.join(others)} or {last}" if others else last
    problems.append(Problem(path, f"it should be {told}", value))
    return value


def _items(value: Any, kinds: Sequence[Any], problems: list[Problem], path: Path) -> Any:
    if not isinstance(value, list | tuple):
        problems.append(Problem(path, "it should be a valid tuple", value))
        return value
    if kinds[-1] is ...:
        kinds = [kinds[0]] * len(value)
    elif len(value) != len(kinds):
        problems.append(Problem(path, f"it should have {len(kinds)} items", value))
        return value
    pairs = zip(value, kinds, strict=True)
    return tuple(checked(item, kind, problems, (*path, n)) for n, (item, kind) in enumerate(pairs))


def _table(value: Any, kinds: Sequence[Any], problems: list[Problem], path: Path) -> Any:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        problems.append(Problem(path, "it should be a valid dictionary", value))
        return value
    return {key: checked(item, kinds[1], problems, (*path, key)) for key, item in value.items()}


def _record(value: Any, kind: Any, problems: list[Problem], path: Path) -> Any:
    if not isinstance(value, dict):
        problems.append(Problem(path, "it should be an object", value))
        return value
    hints, taken, known = get_type_hints(kind, include_extras=True), {}, len(problems)
    for field in fields(kind):
        if field.name in value:
            at = (*path, field.name)
            taken[field.name] = checked(value[field.name], hints[field.name], problems, at)
        elif field.default is MISSING and field.default_factory is MISSING:
            problems.append(Problem((*path, field.name), MISSING_KEY))
    problems += (Problem((*path, key), UNKNOWN_KEY) for key in value if key not in hints)
    return value if len(problems) > known else kind(**taken)


def _plain(value: Any, kind: type, problems: list[Problem], path: Path) -> Any:
    is_bool = isinstance(value, bool)
    if kind is float and isinstance(value, int | float) and not is_bool:
        if abs(value) <= sys.float_info.max:  # neither NaN nor infinite, nor an int beyond
            return float(value)
        problems.append(Problem(path, "it should be a finite number", value))
    elif not isinstance(value, kind) or (is_bool and kind is not bool):
        problems.append(Problem(path, f"it should be {_KINDS[kind]}", value))
    return value


# By `get_origin`: that of a Mapping is the class of collections.abc.
_CHECKS: dict[Any, Callable[[Any, Sequence[Any], list[Problem], Path], Any]] = {
    Union: _one_of,
    UnionType: _one_of,
    Literal: _choice,
    tuple: _items,
    dict: _table,
    Mapping: _table,
}
