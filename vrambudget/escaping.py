r"""Text of other people, as text: what a terminal, Markdown, HTML or JSON would obey is escaped.

    escaped      C0 and C1 controls (OSC, CSI), bidirectional marks, surrogates: \x1b, \u202e
    for_terminal the same for a whole output, whose lines and colours are ours
    escape       for HTML and SVG
    in_markdown  for Markdown: no link, no emphasis, no HTML, no other cell
    json_text    a value as JSON, which escapes them in its own way

Every output goes through one of them; `tests/test_escaping.py` holds the doors against each.
"""

import json
import re
from html import escape as _html
from typing import Any

LINES = "\n"
_LAID_OUT = "\n\t"
_COLOUR = re.compile(r"(\x1b\[(?:\d{1,3};){0,4}\d{1,3}m)")
_MARKUP = re.compile(r"([\\`*\[\]<>|]|(?<!\w)_|_(?!\w))")


def escaped(text: str, *, keep: str = "") -> str:
    """Return `text` with what a terminal would obey, and what no encoding holds, as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def for_terminal(text: str, *, coloured: bool = False) -> str:
    """Return an output of several lines; `coloured`: it may have our own colours."""
    if not coloured:
        return escaped(text, keep=_LAID_OUT)
    parts = _COLOUR.split(text)
    parts[::2] = [escaped(part, keep=_LAID_OUT) for part in parts[::2]]
    return "".join(parts)


def escape(text: str) -> str:
    """Return text for HTML, in an element or a quoted attribute."""
    return _html(escaped(text, keep=_LAID_OUT))


def in_markdown(text: str) -> str:
    """Return text for Markdown, in a line or in a table's cell."""
    return _MARKUP.sub(r"\\\1", escaped(text))


def json_text(value: Any) -> str:
    """Return a value as JSON of several lines, with its letters but without its controls."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
