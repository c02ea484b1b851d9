"""The planner as a folder of static files: any web server can host it, and nothing leaves the page.

    index.html, planner.js, planner.css    the page, with the report's own drawing code
    choices.json                           models, GPUs and fields, there before Python is
    worker.js                              Python and the package, away from the page's thread
    packages.zip                           this package, as installed
    pyodide/                               CPython in WebAssembly, copied if a folder was given

Without that folder the page takes Pyodide from its public address.

Source: pyodide.org/en/stable/usage/api/js-api.html (loadPyodide, unpackArchive).
"""

import io
import json
import shutil
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vrambudget.config.cards import cards_folder
from vrambudget.errors import VramBudgetError
from vrambudget.files import text_beside, write_file
from vrambudget.planner.answers import choices
from vrambudget.report.html import beside, style

PYODIDE = "314.0.7"
PUBLIC = f"https://cdn.jsdelivr.net/pyodide/v{PYODIDE}/full/"
_RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
_LOCK = "pyodide-lock.json"
_SCRIPTS = ("drag.js", "plan.js", "planner.js")
_PACKAGE = Path(__file__).parents[1]
_text = partial(text_beside, __file__)


def write_site(folder: Path, *, pyodide: Path | None = None) -> None:
    """Write the planner into a folder, which is made if it is missing.

    `pyodide`: a folder with its runtime (the npm package's, or a release's). Raises
    VramBudgetError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if pyodide is not None:
        _copy_runtime(pyodide, folder / "pyodide")
    place = PUBLIC if pyodide is None else "pyodide/"
    settings = {"pyodide": place, "packages": "packages.zip"}
    page = _text("planner.html").replace("{settings}", json.dumps(settings))
    for name, text in {
        "index.html": page,
        "planner.css": style() + _text("planner.css"),
        "planner.js": beside("page.js") + "".join(map(_text, _SCRIPTS)),
        "worker.js": _text("worker.js"),
        "choices.json": json.dumps(choices()),
    }.items():
        write_file(folder / name, text.encode(), "planner")
    write_file(folder / "packages.zip", packages(), "planner")


def packages() -> bytes:
    """Return this package as a zip of a site-packages folder."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(_files()):
            info = zipfile.ZipInfo(name)  # of one date: the same files make the same bytes
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, path.read_bytes())
    return data.getvalue()


def _files() -> Iterator[tuple[str, Path]]:
    for path in _PACKAGE.rglob("*"):
        inside = path.relative_to(_PACKAGE)
        if path.is_file() and not {"__pycache__", "model_cards"} & {*inside.parts}:
            yield f"vrambudget/{inside.as_posix()}", path
    for path in cards_folder().glob("*.toml"):
        yield f"vrambudget/model_cards/{path.name}", path


def _copy_runtime(source: Path, target: Path) -> None:
    missing = [name for name in _RUNTIME if not (source / name).is_file()]
    if missing:
        raise VramBudgetError(
            f"this is not a folder of Pyodide {PYODIDE}: {missing[0]} is missing",
            where=str(source),
            hint=f"npm pack pyodide@{PYODIDE}, or take a release of Pyodide",
        )
    target.mkdir(exist_ok=True)
    for name in (*_RUNTIME, _LOCK):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
