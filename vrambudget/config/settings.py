"""What all that a user hands in has in common: frozen, strict, and errors that people can read.

A value of the wrong kind is an error and never converted: true is no number, "8" is no number, NaN
and infinity are none either. An unknown key is an error that names the nearest known one. All
mistakes of one object are reported together, with the key as its user wrote it and what came.

Not modelled: nested objects; what a user hands in is flat.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, FrozenInstanceError, dataclass, replace
from operator import index
from typing import (
    Annotated,
    Any,
    ClassVar,
    NoReturn,
    Self,
    dataclass_transform,
    get_origin,
    get_type_hints,
)

from vrambudget.errors import VramBudgetError, did_you_mean
from vrambudget.schema import MISSING_KEY, UNKNOWN_KEY, Problem, Rule, checked

LARGEST = 2**31
"""Beyond every real dimension, batch or block; where a typing slip or a broken file begins."""

_SHOWN = 60  # characters of a wrong value that an error repeats


def _whole(value: Any) -> Any:
    """Return NumPy's integers as int and everything else (true too) as it came."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    return index(value)


Size = Annotated[int, Rule(before=_whole, ge=1, le=LARGEST)]
"""A dimension or a count: 1 to 2**31."""

Probability = Annotated[float, Rule(ge=0, lt=1)]
"""A dropout probability: at 1 nothing would be left."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a class of settings; without a default a value has to be given."""

    annotation: Any
    default: Any
    description: str | None
    default_factory: Callable[[], Any] | None


def field(
    default: Any = MISSING,
    *,
    description: str | None = None,
    default_factory: Callable[[], Any] | None = None,
) -> Any:
    """Say more of a field than its default.

    batch: Size = field(1, description="sequences per forward pass")
    """
    return Field(Any, default, description, default_factory)


class _Fields:
    """The fields of a class of settings, base class first; found when they are first asked for."""

    def __get__(self, _: object, owner: type["Settings"]) -> Mapping[str, Field]:
        found: dict[str, Field] | None = owner.__dict__.get("_fields")
        if found is None:
            found = {}
            for name, annotation in get_type_hints(owner, include_extras=True).items():
                if get_origin(annotation) is not ClassVar:
                    given = getattr(owner, name, MISSING)
                    declared = given if isinstance(given, Field) else field(given)
                    found[name] = replace(declared, annotation=annotation)
            type.__setattr__(owner, "_fields", found)
        return found


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Settings:
    """A frozen, strict set of values; `aliases` are other spellings of its fields.

    Methods are called as pydantic calls them, whose users know them.
    """

    aliases: ClassVar[Mapping[str, str]] = {}
    model_fields: ClassVar[Mapping[str, Field]] = _Fields()  # type: ignore[assignment]

    def __init__(self, **values: Any) -> None:
        self._fill(values, None)

    @classmethod
    def parse(cls, values: Mapping[str, object], *, where: str | None = None) -> Self:
        """Return the checked values. Raises VramBudgetError that names every mistake."""
        made = cls.__new__(cls)
        made._fill(values, where)  # noqa: SLF001 - its own class
        return made

    @classmethod
    def known_keys(cls) -> set[str]:
        """Return every spelling that is understood."""
        return {*cls.model_fields, *cls.aliases}

    def problems(self) -> Iterable[str]:
        """Yield one sentence for each rule between fields that is broken."""
        return ()

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """Return the settings with other values, which are taken as they are."""
        made = self.__class__.__new__(self.__class__)
        made.__dict__.update(self.__dict__)
        made.__dict__.update(update)
        return made

    def model_dump(self, *, exclude: Collection[str] = ()) -> dict[str, Any]:
        """Return the values by field, as JSON has them: a tuple is a list."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.__dict__.items()
            if name not in exclude
        }

    def __eq__(self, other: object) -> bool:
        return self.__class__ is other.__class__ and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({values})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to {name!r}: settings do not change")

    def _fill(self, values: Mapping[str, object], where: str | None) -> None:
        try:
            given = canonical(values, self.aliases)
        except ValueError as error:
            raise VramBudgetError(str(error), where=where) from None
        problems: list[Problem] = []
        for name, field in self.model_fields.items():
            self.__dict__[name] = _value_of(name, field, given, problems)
        problems += (Problem((key,), UNKNOWN_KEY) for key in given if key not in self.model_fields)
        if problems:
            raise _refused(problems, type(self), values, where)
        if broken := list(self.problems()):
            raise VramBudgetError(_told(broken), where=where)


def _value_of(
    name: str, field: Field, given: Mapping[str, object], problems: list[Problem]
) -> object:
    """Return a field's value, checked, or its default, which is checked where it is made."""
    if name in given:
        return checked(given[name], field.annotation, problems, (name,))
    if field.default_factory is not None:
        return checked(field.default_factory(), field.annotation, problems, (name,))
    if field.default is MISSING:
        problems.append(Problem((name,), MISSING_KEY))
    return field.default


def canonical(values: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Return the values under their fields' names. Raises ValueError where two disagree."""
    renamed: dict[str, Any] = {}
    for key, value in values.items():
        name = aliases.get(key, key)
        if name in renamed and renamed[name] != value:
            raise ValueError(
                f"{name} is given twice, under other spellings: "
                f"{show(renamed[name])} and ({key}) {show(value)}"
            )
        renamed[name] = value
    return renamed


def show(value: object) -> str:
    """Return `value` for an error message, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _refused(
    problems: Sequence[Problem],
    cls: type[Settings],
    values: Mapping[str, object],
    where: str | None,
) -> VramBudgetError:
    """Return the error that tells problems, with keys as they were written."""
    written = {cls.aliases.get(key, key): key for key in values}
    lines = [_line(problem, written) for problem in problems]
    unknown = [str(problem.path[0]) for problem in problems if problem.rule == UNKNOWN_KEY]
    hints = [hint for key in unknown if (hint := did_you_mean(key, cls.known_keys()))]
    return VramBudgetError(_told(lines), where=where, hint="; ".join(hints) or None)


def _told(lines: Sequence[str]) -> str:
    return lines[0] if len(lines) == 1 else f"{len(lines)} mistakes:\n  " + "\n  ".join(lines)


def _line(problem: Problem, written: Mapping[str, str]) -> str:
    first, *rest = problem.path
    key = ".".join(map(str, (written.get(str(first), first), *rest)))
    if problem.rule in (UNKNOWN_KEY, MISSING_KEY):
        return f"{key} {problem.rule.removeprefix('it ')}"
    return f"{key} is {show(problem.value)}; {problem.rule}"
