"""A message that is known by its words, and how a pattern of them is made."""

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A message of `source`; `explain` says what it means, and what to do."""

    source: str
    pattern: re.Pattern[str]
    explain: Callable[[re.Match[str]], tuple[str, tuple[str, ...]]]


_GAP = r"\s{1,40}"
SIZE = r"[\d.]{1,20}\s{0,40}[KMGT]?i?B"


def pattern(words: str) -> re.Pattern[str]:
    """Return a pattern in which a space is any white space: messages are wrapped."""
    return re.compile(words.replace(" ", _GAP), re.IGNORECASE)


def joined(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())
