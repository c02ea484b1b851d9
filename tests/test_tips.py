"""Every command that a message of the package proposes is one that the command line takes."""

import ast
import contextlib
import re
import shlex

import pages
import pytest

from vrambudget.cli.parser import COMMANDS, parse

COMMAND = re.compile(r"`(vrambudget [^`]+)`")
WORDS = {
    "MODEL": "gpt2",
    "{}": "gpt2",
    "GPU": "12GB",
    "{}xGPU": "2x12GB",
    "N": "2",
    "FILE": "file.json",
    "SCRIPT": "train.py",
}


def texts(tree):
    """Yield the texts of a module, docstrings aside; what is filled in is {}."""
    docstrings = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (getattr(part, "value", None) for part in node.values)
            yield "".join(part if isinstance(part, str) else "{}" for part in parts)
        elif isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield node.value if isinstance(node.value, str) else ""


def proposed():
    found = set()
    for file in sorted((pages.ROOT / "vrambudget").rglob("*.py")):
        for text in texts(ast.parse(file.read_text(encoding="utf-8"))):
            found |= set(COMMAND.findall(text))
    return sorted(found)


@pytest.mark.parametrize("command", proposed())
def test_a_proposed_command_is_taken(command):
    _, *words = (WORDS.get(word.replace("{}{}", "{}"), word) for word in shlex.split(command))
    if len(words) == 1 and not words[0].startswith("-"):
        assert words[0] in COMMANDS or words[0] == "gpt2"  # a command by its name alone
        return
    if words[-1] == "--gpu":
        words.append("12GB")
    if words[0] == "fit" and "--longest-new" in words:
        words[1:1] = ["gpt2", "--gpu", "12GB"]
    if command.startswith("vrambudget plan {}"):  # which names a GPU, too
        words += ["--gpu", "12GB"]
    assert words[0] != "rehearse" or "--gpu" in words  # it asks for one
    with contextlib.suppress(SystemExit):  # --help ends so
        parse(words)


def test_there_are_such_commands():
    assert len(proposed()) > 20
