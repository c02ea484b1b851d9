"""YAML, TOML and JSON as objects with keys; nested keys as one, with dots between.

A key that stands twice is an error in each of them, and so is what is out of bounds (`bounded`).
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vrambudget.bounded import LONGEST_NUMBER, check, read_json, too_deep
from vrambudget.errors import VramBudgetError
from vrambudget.files import read_file

_MOST_BYTES = 2**20
_MOST_KEYS = 10_000
_DEEPEST = 20
_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?m)(?:^|[\[{{,])[ \t]*(?:{_PART}[ \t]*\.[ \t]*){{{_DEEPEST + 1}}}")
_LONG_NUMBER = re.compile(rf"(?m)^([^\n=#]{{0,60}})=[^\n]*?\b([\d_]{{{LONGEST_NUMBER + 1},}})")


def read_text(path: Path) -> dict[str, Any]:
    """Return the object that a file holds. Raises VramBudgetError that names the file."""
    values = read_values(path)
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise VramBudgetError(
            f"this holds a {type(values).__name__}; it should be an object with keys",
            where=str(path),
        )
    return values


def read_values(path: Path) -> Any:
    """Return what a file holds, an object or another. Raises VramBudgetError that names it."""
    where = str(path)
    try:
        text = read_file(path, "run", _MOST_BYTES).decode("utf-8-sig")
        return {".toml": _toml, ".json": _json}.get(path.suffix, _yaml)(text)
    except UnicodeDecodeError:
        raise VramBudgetError("this is no text", where=where) from None
    except VramBudgetError as error:
        error.where = error.where or where
        raise


def flat(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return `values` with the keys of nested objects as one: optimizer.lr."""
    found = dict[str, Any]()
    if not _collect(values, "", found, _DEEPEST):
        raise VramBudgetError("this has too many keys, or they are nested too deep", where=where)
    return found


def _collect(values: Mapping[str, Any], prefix: str, found: dict[str, Any], deeper: int) -> bool:
    """Add the keys to `found`; return whether that was all, for there may be too many."""
    for key, value in values.items():
        if not isinstance(value, Mapping) or not value:
            found[f"{prefix}{key}"] = value
        elif not deeper or not _collect(value, f"{prefix}{key}.", found, deeper - 1):
            return False
    return len(found) <= _MOST_KEYS


def _toml(text: str) -> Any:
    if long := _LONG_KEY.search(text):  # tomllib takes the square of their number
        line = text.count("\n", 0, long.end()) + 1
        raise VramBudgetError(f"a key in line {line} has more than {_DEEPEST} parts")
    if number := _LONG_NUMBER.search(text):
        digits = len(number[2])
        raise VramBudgetError(f"{number[1].strip()} is a number of {digits:,} digits")
    try:
        values = tomllib.loads(text)
    except ValueError as error:  # a TOMLDecodeError, or a date that none is
        raise VramBudgetError(f"this is not TOML: {error}") from None
    except RecursionError:
        raise too_deep() from None
    check(values)
    return values


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except json.JSONDecodeError as error:
        raise VramBudgetError(f"this is no JSON: {error}") from None


def _yaml(text: str) -> Any:
    from vrambudget.config.foreign.yaml_text import read_yaml  # noqa: PLC0415 - if one is read

    return read_yaml(text)
