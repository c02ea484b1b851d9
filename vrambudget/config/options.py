"""Fields of a job as words of the command line."""

from collections.abc import Iterator, Mapping
from typing import Any

from vrambudget.config.job import Job

EITHER = {"use_cache"}
"""Fields that are on or off by what the model or the loop is: there is an option for each."""


def option_of(field: str) -> str:
    """Return a field's option; that of a field which is true or false flips its default."""
    if field == "keep_outputs":
        return "--discard-outputs"
    is_on = field in Job.model_fields and Job.model_fields[field].default is True
    return f"--{'no-' if is_on else ''}{field.replace('_', '-')}"


def is_switch(field: str) -> bool:
    """Return whether a name is that of a field which is true or false."""
    known = Job.model_fields.get(field)
    return field in EITHER or (known is not None and known.annotation is bool)


def option_words(fields: Mapping[str, Any]) -> list[str]:
    """Return fields of a job as words of the command line; None says nothing."""
    return [word for field, value in fields.items() for word in _words(field, value)]


def _words(field: str, value: object) -> Iterator[str]:
    if field in EITHER:
        yield option_of(field if value else f"no_{field}")
    elif is_switch(field):
        if value != Job.model_fields[field].default:
            yield option_of(field)
    elif value is not None:
        yield option_of(field)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        yield ",".join(value) if isinstance(value, tuple) else text
