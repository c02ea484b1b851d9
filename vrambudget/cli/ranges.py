"""Several values in one option: 1,2,8 and 8:64 (every one), 8:64:8 (steps), 1:64:x2 (doubling).

A range includes both ends, as far as the steps reach them.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from typing import Any

_RANGE = re.compile(r"(\d{1,10}):(\d{1,10})(?::(x?)(\d{1,10}))?")
_MOST = 10**6  # values; more than that is a typing slip


def read_values(reading: dict[str, Any]) -> dict[str, Any]:
    """Return how argparse reads several values, given how it reads one."""
    one = reading.get("type", str)
    return {
        "type": lambda text: values(text, one),
        "metavar": "N,N|N:N:N|N:N:xN" if one is int else "A,B",
        "help": _with_choices(reading),
    }


def values(text: str, one: Callable[[str], Any]) -> list[Any]:
    """Return the values that `text` means, as `one` reads one of them."""
    found: list[Any] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part) if one is int else None
        try:
            found += _range(match) if match else [one(part)]
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{part!r} is neither a value nor a range (8:64, 8:64:8, 1:64:x2)"
                if one is int
                else f"{part!r} is not a valid {one.__name__}"
            ) from None
    return found


def _range(match: re.Match[str]) -> list[int]:
    start, end, step = int(match[1]), int(match[2]), int(match[4] or 1)
    grows = match[3] == "x"
    if start > end or step < 1 + grows or (grows and not start):
        raise argparse.ArgumentTypeError(f"{match[0]!r} is not a rising range")
    if not grows and (end - start) // step >= _MOST:
        raise argparse.ArgumentTypeError(f"{match[0]!r} is more than {_MOST:,} values")
    return list(_powers(start, end, step)) if grows else list(range(start, end + 1, step))


def _powers(start: int, end: int, factor: int) -> Iterator[int]:
    while start <= end:
        yield start
        start *= factor


def _with_choices(reading: dict[str, Any]) -> str:
    choices = reading.get("choices")
    text: str = reading["help"]
    return f"{text}; of {', '.join(map(str, choices))}" if choices else text
