"""What the README says is so: its commands are understood, its outputs are what they print.

`PYTHONPATH=. python tests/test_readme.py` writes the outputs anew, where they change on purpose.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from vrambudget.cli import main
from vrambudget.cli.parser import parse

README = Path(__file__).parents[1] / "README.md"
OUTPUT = re.compile(
    r"(<!-- output: (?P<command>[^\n]+) -->\n```\n)(?P<shown>.*?)(```\n)", re.DOTALL
)
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^(?:.* && )?vrambudget (.+)$", re.MULTILINE)


def _printed(command: str) -> str:
    """Return what a command prints; `| head -N` and `| tail -N` are understood."""
    words, _, part = command.partition(" | ")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.chdir(README.parent):
        main(shlex.split(words)[1:])
    lines = out.getvalue().splitlines(keepends=True)
    end, _, count = part.partition(" -")
    shown = {"head": slice(int(count or 0)), "tail": slice(-int(count or 0), None), "": slice(None)}
    return "".join(lines[shown[end]])


def _shell_commands() -> list[str]:
    blocks = re.findall(
        r"^```sh\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return [command for block in blocks for command in COMMAND.findall(block)]


def test_there_are_commands_and_outputs():
    assert len(_shell_commands()) >= 5
    assert len(OUTPUT.findall(README.read_text(encoding="utf-8"))) >= 2


@pytest.mark.parametrize("command", _shell_commands())
def test_a_command_is_understood(command):
    assert callable(parse(shlex.split(command)).run)


@pytest.mark.parametrize(
    "found",
    list(OUTPUT.finditer(README.read_text(encoding="utf-8"))),
    ids=lambda found: found["command"],
)
def test_an_output_is_what_the_command_prints(found):
    assert found["shown"] == _printed(found["command"])


if __name__ == "__main__":
    import conftest  # noqa: F401 - the baseline's versions

    text = README.read_text(encoding="utf-8")
    README.write_text(
        OUTPUT.sub(lambda found: found[1] + _printed(found["command"]) + found[4], text),
        encoding="utf-8",
    )
