"""The sources that docstrings cite, as data: package, file, names.

A docstring says `Source: torch/optim/adam.py (_multi_tensor_adam); transformers/trainer.py
(Trainer.training_step)`: a path as the library's repository has it, or its end, and what in that
file a rule follows. A path belongs to the library whose files end in it; where several do, to the
one that has the names.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "vrambudget"

_SOURCE = re.compile(r"Sources?:\s(.*?)(?=\n\s*\n|\nNot modelled|\Z)", re.DOTALL)
_CITED = re.compile(r"(?P<path>[\w./+-]*\w\.(?:py|cpp|cuh?|h|yaml))\b(?:\s*\((?P<names>[^()]*)\))?")
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_WORDS = frozenset({"and", "of", "the", "from", "its", "in", "as", "by", "also", "since", "until"})


@dataclass(frozen=True, slots=True)
class Citation:
    """A file that a rule follows, and what in it; `where` is our module."""

    where: str
    path: str
    names: tuple[str, ...]

    @property
    def is_python(self) -> bool:
        """Whether an installed package has the file."""
        return self.path.endswith(".py")


def citations(package: Path = PACKAGE) -> Iterator[Citation]:
    """Yield what the docstrings of a package cite."""
    for file in sorted(package.rglob("*.py")):
        where = file.relative_to(package.parent).as_posix()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield from cited_in(ast.get_docstring(node) or "", where)


def cited_in(docstring: str, where: str) -> Iterator[Citation]:
    """Yield what one docstring cites."""
    for source in _SOURCE.finditer(docstring):
        text = " ".join(source[1].split())
        for match in _CITED.finditer(text):
            yield Citation(where, match["path"], tuple(_names(match["names"] or "")))


def _names(text: str) -> Iterator[str]:
    """Yield the names between a citation's brackets: identifiers, not words or versions."""
    for part in re.split(r"[,;:]|\band\b", text):
        word = part.strip()
        if _NAME.fullmatch(word) and word not in _WORDS:
            yield word
