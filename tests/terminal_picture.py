"""The README's picture of a terminal; `PYTHONPATH=.:tests python tests/terminal_picture.py`."""

import textwrap
from html import escape

import pages

COMMAND = "vrambudget plan llama-3.1-8b --gpu 12GB"
PICTURE = pages.ROOT / "docs" / "pictures" / "terminal.svg"
WIDTH, LINES = 134, 9  # columns; lines of output
_TYPED, _INK = "#7ee787", "#e6edf3"
_LINE, _COLUMN = 19, 7.83  # pixels of 13 px monospace


def shown() -> list[str]:
    """Return the lines of the picture: the command, and the beginning of what it prints."""
    lines = pages.printed(COMMAND).splitlines()
    table = [line for line in lines if line.startswith(("recipe", "---", "qlora"))]
    head = [part for line in lines[:1] for part in textwrap.wrap(line, WIDTH)]
    return [f"$ {COMMAND}", *head, "", *(line[:WIDTH] for line in table)][:LINES]


def svg(lines: list[str]) -> str:
    """Return the lines as a picture that is readable on light and dark pages."""
    width, height = int(WIDTH * _COLUMN) + 32, len(lines) * _LINE + 28
    texts = "".join(
        f'<text x="16" y="{28 + n * _LINE}" fill="{_TYPED if line.startswith("$") else _INK}"'
        f' xml:space="preserve">{escape(line)}</text>\n'
        for n, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>\n'
        f'<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13">\n{texts}</g>\n'
        "</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(svg(shown()), encoding="utf-8")
