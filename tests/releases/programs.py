"""The recorded programs of model types, held against their code under another environment."""

import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vrambudget.program.catalog import RECORDED, program_at

_TESTS = Path(__file__).parents[1]
_EXAM = _TESTS / "programs_exam.py"


def record_again(python: str, names: Sequence[str]) -> int:
    """Print which programs do not equal their models any more, and how they change; 1 if any."""
    done = _run(python, str(_EXAM), *names)
    print(done.stdout, end="")
    if done.returncode not in {0, 1} or not done.stdout:
        print(done.stderr, file=sys.stderr)
        return 1
    unequal = [
        line.partition(": ")[0] for line in done.stdout.splitlines() if ": equal" not in line
    ]
    models = {each["model_type"]: each for each in _models()}
    for name in unequal:
        print(*_changes(python, RECORDED / f"{name}.program", models), sep="\n")
    return int(bool(unequal))


def _models() -> list[dict[str, Any]]:
    text = (_TESTS / "records" / "traced" / "model_types.jsonl").read_text()
    return [json.loads(line)["model"] for line in text.splitlines()]


def _changes(python: str, path: Path, models: dict[str, dict[str, Any]]) -> list[str]:
    """Return the difference of a program that is recorded anew, or why it is not recorded."""
    program = program_at(path)
    source, when = program.source, program.when
    with tempfile.TemporaryDirectory() as folder:
        config, made = Path(folder) / "config.json", Path(folder) / path.name
        config.write_text(json.dumps(source.get("sizes") or models[source["model_type"]]))
        options = [] if when.get("use_cache", [True])[0] else ["--no-cache"]
        options += ["--task", when["task"][0]] if "task" in when else []
        done = _run(python, "-m", "vrambudget", "record", str(config), "-o", str(made), *options)
        if not made.exists():
            return [f"{path.stem} is not recorded: {done.stderr.strip()}"]
        before, after = (file.read_text().splitlines() for file in (path, made))
    return [*difflib.unified_diff(before, after, path.name, "recorded anew", lineterm="", n=1)]


def _run(python: str, *words: str) -> subprocess.CompletedProcess[str]:
    paths = {**os.environ, "PYTHONPATH": str(_TESTS.parent)}
    return subprocess.run([python, *words], capture_output=True, text=True, check=False, env=paths)
