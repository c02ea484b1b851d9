"""Rows of named columns in the requested format: table, JSON, CSV or Markdown.

    render_rows(columns, rows, "csv")

JSON and CSV carry the values as they are (bytes as integers); a table and Markdown carry the texts
that `Column.show` makes of them.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Any, Literal, NamedTuple, get_args
from unicodedata import combining, east_asian_width

from vrambudget.escaping import escape, escaped, in_markdown, json_text

Format = Literal["table", "json", "csv", "markdown"]
WIDTH = 80  # columns of a terminal
FORMATS: tuple[Format, ...] = get_args(Format)


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class Column(NamedTuple):
    """One column: its key in JSON and CSV, its heading elsewhere, and how a value is shown."""

    key: str
    heading: str
    align: Literal["left", "right"] = "left"
    show: Callable[[Any], str] = str


def render_rows(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], output: Format
) -> str:
    """Return the rows as text that ends without a newline."""
    if output == "json":
        records = [{column.key: row[column.key] for column in columns} for row in rows]
        return json_text(records)
    if output == "csv":
        return csv_text([c.key for c in columns], [[row[c.key] for c in columns] for row in rows])
    shown = [[column.show(row[column.key]) for column in columns] for row in rows]
    headings = [column.heading for column in columns]
    return grid(shown, headings, [c.align for c in columns], markdown=output == "markdown")


def html_table(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], titles: Sequence[str] = ()
) -> str:
    """Return the rows as a table in HTML; `titles`: what a pointer over each row shows."""
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in columns)
    lines = []
    for row, title in zip_longest(rows, titles):
        cells = "".join(f"<td>{escape(column.show(row[column.key]))}</td>" for column in columns)
        lines.append(f'<tr title="{escape(title)}">{cells}</tr>' if title else f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def csv_text(keys: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a CSV: a line of keys, then the rows."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(keys)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().rstrip("\n")


def _cell(value: Any) -> Any:
    """Return a value that no spreadsheet takes for a formula (OWASP, "CSV Injection")."""
    if not isinstance(value, str):
        return value
    return escaped(f"'{value}" if value.startswith(_FORMULA) else value, keep="\n")


def grid(
    rows: Sequence[Sequence[str]],
    headings: Sequence[str] = (),
    align: Sequence[str] = ("left",),
    *,
    markdown: bool = False,
) -> str:
    """Return texts in aligned columns, unchanged; those that `align` does not name are "right"."""
    cells = [[printable(cell, markdown=markdown) for cell in row] for row in rows]
    wide = [_columns(heading) + 2 for heading in headings]
    for row in cells:
        wide = [max(pair) for pair in zip_longest(wide, map(_columns, row), fillvalue=0)]
    sides = [side for _, side in zip_longest(wide, align, fillvalue="right")]
    lines = [
        [_padded(*cell) for cell in zip(row, wide, sides, strict=True)]
        for row in ([*headings], *cells)
        if row
    ]
    if markdown:
        first, *rest = (f"| {' | '.join(line)} |" for line in lines)
        return "\n".join([first, f"|{'|'.join('-' * (n + 2) for n in wide)}|", *rest])
    lines[1:1] = [["-" * width for width in wide]] if headings else []
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _padded(text: str, width: int, side: str) -> str:
    padding = " " * (width - _columns(text))
    return padding + text if side == "right" else text + padding


def _columns(text: str) -> int:
    """Return how many columns of a terminal a text takes: two for a wide character."""
    return sum(0 if combining(c) else 1 + (east_asian_width(c) in "WF") for c in text)


def wrapped(text: str, mark: str = "") -> list[str]:
    """Return a text of somebody else in lines of 80 columns; `mark` stands before the first."""
    return wrap(
        escaped(text, keep="\n\t"),
        WIDTH,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_on_hyphens=not mark,
    )


def printable(text: str, *, markdown: bool = False) -> str:
    """Return `text` without anything that moves a terminal's cursor or breaks a Markdown table."""
    return in_markdown(text) if markdown else escaped(text)
