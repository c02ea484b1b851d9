"""What every answer and every error is held against."""

import json
import re
from typing import Any

from vrambudget import VramBudgetError

CLASS = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")
OF_PYTORCH = {"OutOfMemoryError", "CheckpointError"}


def strict(text: str) -> Any:
    """Return what strict JSON means: without NaN and Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def told(error: VramBudgetError, where: str = "") -> None:
    """Hold an error against what a reader needs: few words, its place, no exception of Python's."""
    assert where in (error.where or "")
    text = error.render()
    assert error.message.strip()
    assert not set(CLASS.findall(text)) - OF_PYTORCH, text
    assert all(c.isprintable() or c == "\n" for c in text), text
    assert len(text) < 20_000


def is_text(text: str) -> bool:
    """Whether nothing in an output is a terminal's to obey."""
    return all(c.isprintable() or c in "\n\t" for c in text)
