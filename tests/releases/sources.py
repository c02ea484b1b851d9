"""A library's Python files at a version, and what stands in them: from its wheel, or a folder."""

import ast
import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

CACHE = Path.home() / ".cache" / "vrambudget-releases"
_DIGITS = 12


class Sources:
    """The files of one library at one version, below `root`."""

    def __init__(self, package: str, root: Path) -> None:
        self.package, self.root = package, root

    @cached_property
    def files(self) -> list[str]:
        """The library's Python files, as paths below the root."""
        top = self.root / self.package
        return sorted(f.relative_to(self.root).as_posix() for f in top.rglob("*.py"))

    def ending_in(self, path: str) -> list[str]:
        """Return the files that a citation's path may name."""
        return [file for file in self.files if f"/{file}".endswith(f"/{path}")]

    def find(self, path: str, names: tuple[str, ...]) -> dict[str, str] | None:
        """Return each cited name's source text, None where no file of this library has them all.

        A file that is cited without names has to be there, and to be the only one.
        """
        files = self.ending_in(path)
        if not names:
            return {files[0]: ""} if len(files) == 1 else None
        for file in files:
            text = (self.root / file).read_text()
            found = dict(_definitions(text))
            texts = {name: _lookup(found, name) for name in names}
            if all(value is not None for value in texts.values()):
                return {f"{file}::{name}": value or "" for name, value in texts.items()}
        return None


def _lookup(found: dict[str, str], name: str) -> str | None:
    """Return the text of a name: as it stands, or the last of a dotted one's ends that is there."""
    return found.get(name) or next(
        (text for known, text in found.items() if known.endswith(f".{name}")), None
    )


def _definitions(text: str) -> Iterator[tuple[str, str]]:
    """Yield every function, class and assigned name of a file with its source, by dotted path."""
    lines = text.splitlines()

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            names = list(_named(child))
            for name in names:
                start, end = child.lineno - 1, child.end_lineno  # type: ignore[attr-defined]
                yield f"{prefix}{name}", "\n".join(lines[start:end])
            inner = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            yield from walk(child, f"{prefix}{names[0]}." if inner and names else prefix)

    yield from walk(ast.parse(text), "")


def _named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
        for decorator in node.decorator_list:  # @register_kernel("library::name", "cuda")
            for argument in getattr(decorator, "args", []):
                if isinstance(argument, ast.Constant) and "::" in str(argument.value):
                    yield str(argument.value).rpartition("::")[2]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id
            elif isinstance(target, ast.Attribute):
                yield target.attr


def digest(text: str) -> str:
    """Return a short digest of a definition, blind to comments, docstrings and layout."""
    try:
        tree = ast.parse(_dedented(text))
    except SyntaxError:  # a decorator's rest, a method's odd indent
        return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:_DIGITS]
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_docstring(body[0]):
            node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:_DIGITS]


def _is_docstring(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _dedented(text: str) -> str:
    lines = text.splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    return "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines)


def of_release(package: str, version: str, *, name: str | None = None) -> Sources:
    """Return a released library's files, downloaded once (`pip download --no-deps`).

    `package` is what is imported, `name` what PyPI calls it. Raises CalledProcessError.
    """
    root = CACHE / f"{package}-{version}"
    if not root.is_dir():
        download = CACHE / "downloads" / f"{package}-{version}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--dest", str(download), f"{name or package}==={version}"]
        subprocess.run(command, check=True)
        (archive,) = download.iterdir()
        _unpack(archive, root)
    return Sources(package, root)


def _unpack(archive: Path, root: Path) -> None:
    """Write an archive's Python files below a folder, as they are imported."""
    draft = root.with_suffix(".part")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(draft, [n for n in wheel.namelist() if n.endswith(".py")])
    else:
        with tarfile.open(archive) as source:
            members = [m for m in source.getmembers() if m.name.endswith(".py")]
            for member in members:
                member.name = member.name.partition("/")[2].removeprefix("src/")
            source.extractall(draft, members, filter="data")
    draft.rename(root)
