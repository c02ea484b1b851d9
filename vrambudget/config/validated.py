"""What pydantic makes of values that are not plainly right: converted, or refused in our words."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from vrambudget.config.settings import mistakes, show
from vrambudget.errors import did_you_mean

if TYPE_CHECKING:
    from vrambudget.config.settings import Settings

_STRICT = ConfigDict(
    extra="forbid",
    strict=True,
    allow_inf_nan=False,
    protected_namespaces=(),
    arbitrary_types_allowed=True,
)


def judged(
    cls: type["Settings"],
    values: Mapping[str, Any],
    written: Mapping[str, object],
    where: str | None,
) -> dict[str, Any]:
    """Return the values as the fields keep them; `written`: with the keys that a user wrote.

    Raises VramBudgetError that names every mistake.
    """
    try:
        found = _model(cls).model_validate(dict(values))  # type: ignore[arg-type]
    except ValidationError as error:
        problems = error.errors(include_url=False)
        spelled = {cls.aliases.get(key, key): key for key in written}
        unknown = [str(each["loc"][0]) for each in problems if each["type"] == "extra_forbidden"]
        hints = [hint for key in unknown if (hint := did_you_mean(key, cls.known_keys()))]
        lines = [_sentence(each, spelled) for each in problems]
        raise mistakes(lines, where, "; ".join(hints) or None) from None
    return {
        name: getattr(found, name) for name in cls.model_fields if name in found.model_fields_set
    }


@cache
def _model(cls: type[Any]) -> type[BaseModel]:
    """Return pydantic's model of these fields."""
    fields: dict[str, Any] = {
        name: (field.annotation, None if field.has_default else ...)
        for name, field in cls.model_fields.items()
    }
    return create_model(cls.__name__, __config__=_STRICT, **fields)


def _sentence(problem: ErrorDetails, written: Mapping[str, str]) -> str:
    first, *rest = problem["loc"]
    key = ".".join(map(str, (written.get(str(first), first), *rest)))
    if problem["type"] == "extra_forbidden":
        return f"{key} is not known"
    if problem["type"] == "missing":
        return f"{key} is missing"
    rule = problem["msg"].removeprefix("Value error, ").replace("Input should", "it should", 1)
    return f"{key} is {show(problem['input'])}; {rule}"
