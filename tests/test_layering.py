"""The layers hold: a module imports from its own layer or a lower one, and starts fast."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vrambudget

PACKAGE = Path(__file__).parents[1] / "vrambudget"

# From the bottom up; what stands on one line is one layer.
LAYERS = [
    {"__init__", "errors", "escaping", "units", "dtypes", "declared", "strides"}
    | {"auto_classes", "sampled_lengths"},
    {"files", "bounded", "expressions"},
    {"budget"},
    {"config"},
    {"cudnn"},
    {"tape"},
    {"engine"},
    {"ops"},
    {"models"},
    {"parallel", "training", "inference", "serving"},
    {"traced"},
    {"program"},
    {"compiled"},
    {"eager"},
    {"scenario"},
    {"build", "simulate"},
    {"per_rank", "full_length", "remarks"},
    {"estimator"},
    {"pictures"},
    {"recording"},
    {"validate", "planning", "oom", "measure", "rehearse", "report", "compare"},
    {"integrations"},
    {"cli", "planner", "__main__"},
]
# Jupyter and print ask a budget to show itself; the reports that it asks are above it.
# nanoGPT in torch is the one that is measured; it imports nothing of this package.
EXCEPTIONS = {("budget.py", "report"), ("compiled/build.py", "measure")}
HEAVY = {"torch", "transformers", "peft", "numpy", "pandas", "matplotlib", "huggingface_hub"}
MAY_BE_HEAVY = {"traced", "recording", "compiled", "eager", "measure", "rehearse", "pictures"}
# A sweep's vector of sizes is an array; only a sweep imports it.
MAY_IMPORT = {
    f"planning/{name}.py": {"numpy"} for name in ("size_vector", "shared_tape", "sweep_points")
}

MODULES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if "native" not in path.parts and "hook" not in path.parts
)
each_module = pytest.mark.parametrize(
    "path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix()
)


def _part(path: Path) -> str:
    """Return the package's direct child that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _layer(part: str) -> int:
    return next(height for height, parts in enumerate(LAYERS) if part in parts)


def _imports(tree: ast.AST) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def _parts_imported(path: Path) -> set[str]:
    parts = set()
    for name in _imports(ast.parse(path.read_text(encoding="utf-8"))):
        top, _, rest = name.partition(".")
        part = rest.partition(".")[0]
        if top == "vrambudget" and any(part in layer for layer in LAYERS):
            parts.add(part)
    return parts


@each_module
def test_a_module_imports_from_its_own_layer_or_a_lower_one(path):
    own, file = _layer(_part(path)), path.relative_to(PACKAGE).as_posix()
    if path.name == "__init__.py" and path.parent == PACKAGE:
        return  # it names all for type checkers, and imports what is used: test_typing.py
    above = {part for part in _parts_imported(path) if _layer(part) > own}
    assert above <= {part for name, part in EXCEPTIONS if name == file}


def test_every_part_of_the_package_has_a_layer():
    assert {_part(path) for path in MODULES} <= set().union(*LAYERS)


@each_module
def test_nothing_but_python_is_imported_with_a_module(path):
    if _part(path) in MAY_BE_HEAVY:
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    at_once = ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], [])
    allowed = MAY_IMPORT.get(path.relative_to(PACKAGE).as_posix(), set())
    tops = {name.partition(".")[0] for name in _imports(at_once)}
    assert tops - sys.stdlib_module_names - {"vrambudget"} <= allowed


@each_module
def test_a_module_says_what_it_is_and_stays_small(path):
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)) or not text.strip()
    assert len(text.splitlines()) <= 330


def _loaded_by(code: str) -> set[str]:
    names = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(names.stdout.split())


def test_importing_the_package_imports_nothing():
    loaded = _loaded_by("import vrambudget")
    assert not loaded & {"vrambudget.errors", *HEAVY}


def test_the_main_job_runs_without_heavy_packages():
    loaded = _loaded_by("import vrambudget; vrambudget.estimate('gpt2', block=64, gpu='12GB')")
    assert "vrambudget.simulate" in loaded
    assert not loaded & HEAVY


def test_the_list_of_commands_needs_none_of_them():
    loaded = _loaded_by("import vrambudget.cli.parser as p; p.overview().format_help()")
    assert not loaded & {"vrambudget.report.tabular", "vrambudget.scenario", *HEAVY}


def test_every_name_of_the_api_is_there():
    loaded = _loaded_by("import vrambudget; [getattr(vrambudget, n) for n in vrambudget.__all__]")
    assert "vrambudget.budget" in loaded


def test_no_module_hides_a_name_of_the_api():
    names = {path.stem for path in PACKAGE.glob("*.py")} | {p.name for p in PACKAGE.iterdir()}
    assert not names & set(vrambudget.__all__)
