"""The GitHub Action and the pre-commit hook: what they run, run here."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
JOB = 'model = "gpt2"\nbatch = {batch}\nblock = 1024\ngpu = "12GB"\n'

needs_bash = pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="no bash")


@pytest.fixture
def jobs(tmp_path):
    (tmp_path / "job.toml").write_text(JOB.format(batch=1))
    (tmp_path / "job-large.toml").write_text(JOB.format(batch=64))
    program = tmp_path / "vrambudget" / "bin" / "vrambudget"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vrambudget "$@"\n')
    program.chmod(0o755)
    return tmp_path


def checked(jobs, files, gpu=""):
    """Run the action's last step as a runner does: bash -e -o pipefail."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    script = action["runs"]["steps"][-1]["run"]
    summary = jobs / "summary"
    own = {"RUNNER_TEMP": str(jobs), "GITHUB_STEP_SUMMARY": str(summary), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [shutil.which("bash"), "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=jobs,
        env={**os.environ, **own, "FILES": files, "GPU": gpu},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, summary.read_text(), done.stdout


@needs_bash
@pytest.mark.parametrize(
    ("files", "code"), [("job.toml", 0), ("job-large.toml", 1), ("job*.toml", 1), ("no.toml", 2)]
)
def test_the_action_fails_where_a_job_does_not_fit(jobs, files, code):
    found, summary, _ = checked(jobs, files)
    assert found == code
    assert ("job.toml" in summary) is (code != 2 and files != "job-large.toml")


@needs_bash
def test_a_file_s_name_is_no_option_no_markdown_and_no_command_of_the_runner(jobs):
    for name in ("--output=a.toml", "::warning::b.toml", "<b>[c](d).toml"):
        (jobs / name).write_text(JOB.format(batch=1))
    code, summary, out = checked(jobs, "*a.toml *b.toml *).toml")
    assert code == 0
    for shown in ("--output=a.toml", "::warning::b.toml", r"\<b\>\[c\](d).toml"):
        assert shown in summary
    assert not (jobs / "a.toml").exists()
    first, *_, last = out.splitlines()
    assert re.fullmatch(r"::stop-commands::[0-9a-f]{32}", first)
    assert last == f"::{first.removeprefix('::stop-commands::')}::"


def test_the_action_gives_its_steps_every_input():
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    given = re.findall(r"inputs\.(\w+)", (ROOT / "action.yml").read_text())
    assert set(given) == action["inputs"].keys()


def test_the_hook_runs_the_check_on_job_files(jobs):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    names = ["job.toml", "runs/job-7b.toml", "vrambudget.toml", "pyproject.toml", "jobs.json"]
    assert [bool(re.search(hook["files"], name)) for name in names] == [True] * 3 + [False] * 2
    program, *words = hook["entry"].split()
    assert program == "vrambudget"
    line = [sys.executable, "-m", "vrambudget", *words, "job.toml", "job-large.toml"]
    done = subprocess.run(line, cwd=jobs, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 1
