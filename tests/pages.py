"""The documentation as the tests read it: commands, outputs, Python blocks, links, paths.

`PYTHONPATH=. python tests/pages.py [PAGE ...]` rewrites the marked outputs of all or of these
pages, where they change on purpose.
"""

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

from vrambudget.cli import main

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
OUTPUT = re.compile(
    r"(<!-- output: (?P<command>[^\n]+) -->\n```\n)(?P<shown>.*?)(```\n)", re.DOTALL
)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_ANY_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^(?:\w+=\S+ |.* && )?vrambudget (.+)$", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:vrambudget|tests|docs|model_cards|\.ci|\.github)/[\w./*-]*)`")


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """Return the contents of the page's fenced blocks in a language."""
    return [text for found, text in _BLOCK.findall(text_of(page)) if found == language]


def commands(page: Path) -> list[str]:
    """Return the arguments of every `vrambudget` command in the page's shell blocks."""
    shell = [text.replace("\\\n", " ") for text in blocks(page, "sh")]
    return [command for text in shell for command in _COMMAND.findall(text)]


def outputs(page: Path) -> list[tuple[str, str]]:
    """Return each marked command with the output that the page shows for it."""
    return [(found["command"], found["shown"]) for found in OUTPUT.finditer(text_of(page))]


def prose(page: Path) -> str:
    return _ANY_BLOCK.sub("", text_of(page))


def links(page: Path) -> list[str]:
    """Return the targets of the page's links within the project."""
    return [target for target in _LINK.findall(prose(page)) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the page's headings."""
    slugs = (re.sub(r"[^\w\- ]", "", h.lower()) for h in _HEADING.findall(prose(page)))
    return {slug.strip().replace(" ", "-") for slug in slugs}


def paths(page: Path) -> list[str]:
    """Return the files and folders of the project that the page names."""
    return _PATH.findall(prose(page))


def printed(command: str) -> str:
    """Return what a command prints; `| head -N` and `| tail -N` are understood."""
    words, _, part = command.partition(" | ")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.chdir(ROOT):
        main(shlex.split(words)[1:])
    lines = out.getvalue().splitlines(keepends=True)
    end, _, count = part.partition(" -")
    shown = {"head": slice(int(count or 0)), "tail": slice(-int(count or 0), None), "": slice(None)}
    return "".join(lines[shown[end]])


if __name__ == "__main__":
    import conftest  # noqa: F401 - the baseline's versions

    for each in map(Path, sys.argv[1:]) if sys.argv[1:] else PAGES:
        each.write_text(
            OUTPUT.sub(
                lambda found: found[1] + printed(found["command"]) + found[4], text_of(each)
            ),
            encoding="utf-8",
        )
