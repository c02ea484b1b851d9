"""YAML, TOML and JSON as objects with keys; nested keys as one, with dots between.

PyYAML is imported when a YAML file is read. A key that stands twice is an error in each of them.
"""

import json
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from vrambudget.errors import VramBudgetError
from vrambudget.files import read_file
from vrambudget.json_text import read_json

_MOST_BYTES = 2**20
_MOST_KEYS = 10_000  # YAML's references may stand for billions
_DEEPEST = 20


def read_text(path: Path) -> dict[str, Any]:
    """Return the object that a file holds. Raises VramBudgetError that names the file."""
    where = str(path)
    try:
        text = read_file(path, "run", _MOST_BYTES).decode("utf-8-sig")
        values = {".toml": _toml, ".json": _json}.get(path.suffix, _yaml)(text)
    except UnicodeDecodeError:
        raise VramBudgetError("this is no text", where=where) from None
    except VramBudgetError as error:
        error.where = error.where or where
        raise
    except RecursionError:
        raise VramBudgetError("this is nested without end", where=where) from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise VramBudgetError(
            f"this holds a {type(values).__name__}; it should be an object with keys", where=where
        )
    return values


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
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise VramBudgetError(f"this is not TOML: {error}") from None


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except json.JSONDecodeError as error:
        raise VramBudgetError(f"this is no JSON: {error}") from None


def _yaml(text: str) -> Any:
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise VramBudgetError(
            "a YAML file needs PyYAML, which is not installed",
            hint="pip install 'vrambudget[yaml]'; JSON and TOML need nothing",
        ) from None
    try:
        _check_keys(yaml.compose(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, VramBudgetError):
            raise
        raise VramBudgetError(f"this is no YAML: {' '.join(str(error).split())}") from None


def _check_keys(node: Any) -> None:
    """Raise VramBudgetError for a key of the outermost object that stands twice."""
    pairs = node.value if node is not None and node.id == "mapping" else ()
    keys = [key.value for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise VramBudgetError(f"the key {key!r} stands twice")
