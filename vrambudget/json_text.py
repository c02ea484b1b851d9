"""JSON as users hand it in: a key that stands twice in an object is a mistake."""

import json
from typing import Any

from vrambudget.errors import VramBudgetError


def read_json(text: str | bytes) -> Any:
    """Return what the text means. Raises ValueError or RecursionError, as json.loads does.

    Raises VramBudgetError for a key that stands twice in an object.
    """
    return json.loads(text, object_pairs_hook=_object)


def read_object(
    text: str | bytes, *, where: str | None, what: str = "this", so: str = ""
) -> dict[str, Any]:
    """Return the object that the text is. Raises VramBudgetError, which calls the text `what`."""
    try:
        values = read_json(text)
    except VramBudgetError as error:
        error.where = where
        raise
    except (ValueError, RecursionError) as error:
        raise VramBudgetError(f"{what} is not JSON: {error}", where=where) from None
    if not isinstance(values, dict):
        raise VramBudgetError(f"{what} is not a JSON object{so}", where=where)
    return values


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        for key, _ in pairs:
            if key in seen:
                raise VramBudgetError(f"the key {key!r} is there twice in one object")
            seen.add(key)
    return found
