"""Bounds of what other people's files say: depth, values, keys, length of a number and of a text.

A file's size bounds what it holds only where nothing in it stands for something else: YAML's
aliases may stand for billions of values, and a deep or long value is slow to show in an error. So
all that is read from JSON, TOML and YAML is held against the same bounds, and so is a configuration
that is handed in as a dict. The largest published `config.json` names 21,841 labels twice, 4 deep.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vrambudget.errors import VramBudgetError

DEEPEST = 64
"""Objects and lists within each other."""
MOST_VALUES = 2_000_000
LONGEST_NUMBER = 500
"""Digits."""
LONGEST_TEXT = 2**20
"""Characters of a value; a chat template has some 50,000."""
LONGEST_KEY = 1000
_LONGEST_BITS = LONGEST_NUMBER * 10 // 3


class LongNumber(str):
    """The digits of a number that nothing reads; `check` refuses it by its key."""

    __slots__ = ()


def read_json(text: str | bytes) -> Any:
    """Return what the text means, within the bounds. Raises ValueError, as json.loads does.

    Raises VramBudgetError for a key that stands twice in an object, and for what is out of bounds.
    """
    try:
        values = json.loads(text, object_pairs_hook=_object)
    except VramBudgetError:
        raise
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise too_deep() from None
    except ValueError:  # more digits than Python reads: which key is it?
        values = json.loads(text, object_pairs_hook=_object, parse_int=_whole)
    check(values)
    return values


def read_object(
    text: str | bytes, *, where: str | None, what: str = "this", so: str = ""
) -> dict[str, Any]:
    """Return the object that the text is. Raises VramBudgetError, which calls the text `what`."""
    try:
        values = read_json(text)
    except VramBudgetError as error:
        error.where = where
        raise
    except ValueError as error:
        raise VramBudgetError(f"{what} is not JSON: {error}", where=where) from None
    if not isinstance(values, dict):
        raise VramBudgetError(f"{what} is not a JSON object{so}", where=where)
    return values


def check(values: Any) -> None:
    """Raise VramBudgetError, with the key, where values are out of bounds; they may be a graph."""
    left = MOST_VALUES
    levels: list[tuple[str | int, Iterator[tuple[Any, Any]]]] = [("", iter([("", values)]))]
    while levels:
        for key, value in levels[-1][1]:
            left -= 1
            kind = type(value)
            if kind is str:
                wrong = len(value) > LONGEST_TEXT
            elif kind is int:
                wrong = value.bit_length() > _LONGEST_BITS
            elif kind is bool or kind is float or value is None:
                continue
            else:
                inner = _inside(value)
                if inner is not None and len(levels) <= DEEPEST and left > 0:
                    levels.append((key, inner))
                    break
                wrong = inner is not None or isinstance(value, LongNumber)
            if wrong or left <= 0:
                raise _beyond([*(name for name, _ in levels[1:]), key], value, left)
            if type(key) is str and len(key) > LONGEST_KEY:
                raise VramBudgetError(f"the key {key[:40]}… has {len(key):,} characters")
        else:
            levels.pop()


def keys_of(path: Sequence[str | int]) -> str:
    """Return a path of keys and numbers as text: `rope_scaling.factors[3]`."""
    text = ""
    for key in path:
        text += f"[{key}]" if type(key) is int else f".{str(key)[:40]}" if text else str(key)[:40]
    return f"…{text[-200:]}" if len(text) > 200 else text  # noqa: PLR2004 - of one sentence


def _inside(value: Any) -> Iterator[tuple[Any, Any]] | None:
    """Return the keys and values of an object or a list, None for anything else."""
    if isinstance(value, Mapping):
        return iter(value.items())
    return enumerate(value) if isinstance(value, list | tuple) else None


def _beyond(path: Sequence[str | int], value: Any, left: int) -> VramBudgetError:
    named = keys_of([key for key in path if key != ""]) or "this"
    if left <= 0:
        return VramBudgetError(f"this has more than {MOST_VALUES:,} values: no configuration has")
    if isinstance(value, LongNumber | int):
        digits = len(value) if isinstance(value, str) else value.bit_length() * 3 // 10
        return VramBudgetError(f"{named} is a number of {digits:,} digits")
    if isinstance(value, str):
        return VramBudgetError(f"{named} is a text of {len(value):,} characters")
    return too_deep(f"what {keys_of(path[1:4])} holds")


def too_deep(what: str = "this", levels: int = DEEPEST) -> VramBudgetError:
    """Return the error for objects and lists within each other, without end perhaps."""
    return VramBudgetError(
        f"{what} is nested too deep: at most {levels} objects and lists within each other are read"
    )


def _whole(digits: str) -> int | LongNumber:
    return LongNumber(digits) if len(digits) > LONGEST_NUMBER else int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        key = twice(key for key, _ in pairs)
        raise VramBudgetError(f"the key {str(key)[:60]!r} is there twice in one object")
    return found


def twice(keys: Iterable[Any]) -> Any:
    """Return the first of the keys that stands twice, None where none does."""
    seen = set[Any]()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return None
