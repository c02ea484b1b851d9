"""The base of all user input: frozen, strict, and with errors that people can read.

A value of the wrong type is an error and never converted: true is not a number, nor are "8", NaN
and infinity. An unknown key is an error that names the nearest known one. All mistakes in one
object are reported together, with the key as the user wrote it and the value.

Not modelled: nested objects; the input is flat.
"""

from collections.abc import Iterable, Mapping
from operator import index
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from vrambudget.errors import VramBudgetError, did_you_mean

LARGEST = 2**31
"""Beyond every real dimension, batch or block; where a typing slip or a broken file begins."""

_SHOWN = 60  # characters of a wrong value that an error repeats


def _whole(value: Any) -> Any:
    """Return NumPy's integers as int and everything else (true too) as it came."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    return index(value)


def _names(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Size = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=LARGEST)]
"""A dimension or a count: 1 to 2**31."""

Probability = Annotated[float, Field(ge=0, lt=1)]
"""A dropout probability: at 1 nothing would be left."""

Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
"""A JSON list of words."""


class Settings(BaseModel):
    """A frozen, strict set of values; `aliases` are other spellings of its fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )
    aliases: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def parse(cls, values: Mapping[str, object], *, where: str | None = None) -> Self:
        """Return the checked values. Raises VramBudgetError that names every mistake."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise _reworded(error, cls, values, where) from None

    @classmethod
    def known_keys(cls) -> set[str]:
        """Return every spelling that is understood."""
        return {*cls.model_fields, *cls.aliases}

    def problems(self) -> Iterable[str]:
        """Yield one sentence for each broken rule between fields."""
        return ()

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, values: Any) -> Any:
        return canonical(values, cls.aliases) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _hold_together(self) -> Self:
        if problems := list(self.problems()):
            raise ValueError("\n".join(problems))
        return self


def canonical(values: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Return the values under their fields' names. Raises ValueError if two disagree."""
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
    """Return `value` for an error message, shortened if it is long."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _reworded(
    error: ValidationError, cls: type[Settings], values: Mapping[str, object], where: str | None
) -> VramBudgetError:
    written = {cls.aliases.get(key, key): key for key in values}
    problems = error.errors(include_url=False)
    lines = list(dict.fromkeys(line for each in problems for line in _lines(each, written)))
    unknown = [str(each["loc"][0]) for each in problems if each["type"] == "extra_forbidden"]
    hints = [hint for key in unknown if (hint := did_you_mean(key, cls.known_keys()))]
    message = lines[0] if len(lines) == 1 else f"{len(lines)} mistakes:\n  " + "\n  ".join(lines)
    return VramBudgetError(message, where=where, hint="; ".join(hints) or None)


def _lines(problem: ErrorDetails, written: Mapping[str, str]) -> list[str]:
    if problem["type"] == "value_error" and not problem["loc"]:
        return str(problem["ctx"]["error"]).splitlines()
    first, *rest = problem["loc"]
    key = ".".join(map(str, (written.get(str(first), first), *rest)))
    if problem["type"] == "extra_forbidden":
        return [f"{key} is not known"]
    if problem["type"] == "missing":
        return [f"{key} is missing"]
    rule = problem["msg"].removeprefix("Value error, ").replace("Input should", "it should", 1)
    return [f"{key} is {show(problem['input'])}; {rule}"]
