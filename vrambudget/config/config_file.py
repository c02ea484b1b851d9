"""A `config.json` on disk, read with care: whatever is wrong with it is named in one sentence.

The path is a file or a folder that holds a `config.json`. The result is a JSON object with
unchanged keys; `model_config` knows what they mean.

Not modelled: a configuration in YAML or inside a checkpoint.
"""

import json
import os
from pathlib import Path
from typing import Any

from vrambudget.bounded import read_json
from vrambudget.errors import VramBudgetError
from vrambudget.files import read_file

CONFIG_NAME = "config.json"
SUFFIXES = (".yaml", ".yml", ".toml", ".json")
"""Of files that a model, or a run, is read from."""

_MOST_BYTES = 16 * 2**20  # the largest published ones name 21,841 labels in 2 MiB


def read_config(path: Path) -> tuple[dict[str, Any], Path]:
    """Return the keys of a configuration and the file they came from. Raises VramBudgetError."""
    file = path / CONFIG_NAME if os.path.isdir(path) else path  # noqa: PTH112 - it raises nothing
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise _nothing_there(path) from None
    except (OSError, ValueError):  # the reader says why
        pass
    hint = f"give the {CONFIG_NAME} that lies beside the weights"
    return _parse(read_file(file, "configuration", _MOST_BYTES, hint=hint), str(file)), file


def _nothing_there(path: Path) -> VramBudgetError:
    if not os.path.isdir(path):  # noqa: PTH112
        return VramBudgetError("there is no such file or folder", where=str(path))
    others = sorted(file.name for file in path.glob("*.json"))[:5]
    hint = f"it holds {', '.join(others)}: give one of them by its path" if others else None
    return VramBudgetError(f"this folder holds no {CONFIG_NAME}", where=str(path), hint=hint)


def _parse(data: bytes, where: str) -> dict[str, Any]:
    if not data.strip():
        raise VramBudgetError("this file is empty", where=where)
    try:
        values = read_json(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise VramBudgetError(
            "this is no text: a configuration is JSON",
            where=where,
            hint=f"give the {CONFIG_NAME} that lies beside the weights",
        ) from None
    except json.JSONDecodeError as error:
        raise _no_json(error, where) from None
    except VramBudgetError as error:  # a key that stands twice
        error.where = where
        raise
    except ValueError as error:  # digits without end
        raise VramBudgetError(f"this is no configuration: {error}", where=where) from None
    if not isinstance(values, dict):
        raise VramBudgetError(
            f"this holds a {type(values).__name__}; it should be an object with keys", where=where
        )
    return values


def _no_json(error: json.JSONDecodeError, where: str) -> VramBudgetError:
    cut_off = not error.doc[error.pos :].strip() or error.msg.startswith("Unterminated string")
    return VramBudgetError(
        f"this is no JSON: {error.msg} at line {error.lineno}, column {error.colno}",
        where=where,
        hint="the file ends too early: was it copied whole?" if cut_off else None,
    )
