"""The command line as people meet it: colours, widths, examples, completion, suffixes, doctor."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from vrambudget.cli import main
from vrambudget.cli.completion import SHELLS, candidates
from vrambudget.cli.examples import EXAMPLES
from vrambudget.cli.parser import COMMANDS, parse

JOB = ["gpt2", "--batch", "1", "--block", "64", "--no-use-cache"]


@pytest.fixture
def run(capsys, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def call(*words):
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_every_command_has_examples_in_its_help(capsys):
    assert EXAMPLES.keys() == {*COMMANDS, "picture"}
    for name in EXAMPLES:
        with pytest.raises(SystemExit):
            main(["flux-dev" if name == "picture" else name, "--help"])
        shown = capsys.readouterr().out
        assert all(example in shown for example in EXAMPLES[name])


@pytest.mark.parametrize(
    "line", [each for name, lines in EXAMPLES.items() if name != "completion" for each in lines]
)
def test_an_example_is_a_command_that_is_understood(line):
    program, *words = shlex.split(line)
    assert program == "vrambudget"
    assert callable(parse(words).run)


def test_colours_are_for_terminals_and_for_those_who_force_them(run, monkeypatch):
    assert "\x1b[" not in run(*JOB)[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run(*JOB)[1]
    monkeypatch.setenv("NO_COLOR", "1")
    plain = run(*JOB)[1]
    assert "\x1b[" not in plain
    assert coloured.count("█") == sum(line.startswith("  ") for line in plain.splitlines()) - 4
    lengths = [len(line) for line in plain.splitlines()]
    assert len(coloured.splitlines()) == len(lengths)


def test_a_narrow_terminal_gets_a_narrow_report(run, monkeypatch):
    monkeypatch.setattr("vrambudget.cli.output._is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, run(*JOB)[1].splitlines())) <= 50
    monkeypatch.setenv("COLUMNS", "100")
    shown = run(*JOB)[1]
    assert "what it is" in shown
    assert 80 < max(map(len, shown.splitlines())) <= 100


def test_a_suffix_that_no_result_has_is_refused_by_name(run, tmp_path):
    code, _, err = run(*JOB, "-o", str(tmp_path / "x.xlsx"))
    assert (code, (tmp_path / "x.xlsx").exists()) == (2, False)
    assert "'.xlsx'" in err
    assert ".csv" in err
    assert run(*JOB, "-o", str(tmp_path / "x.log"), "--format", "csv")[0] == 0


@pytest.mark.parametrize(
    ("words", "among"),
    [
        ([""], {"plan", "gpt2"}),
        (["pl"], {"plan"}),
        (["gpt2", "--gpu", "rtx-30"], {"rtx-3060", "rtx-3090"}),
        (["gpt2", "--gpu", "RTX-30"], {"rtx-3060", "rtx-3090"}),
        (["gpt2", "--gpu=A1"], {"--gpu=a10", "--gpu=a100-80gb"}),
        (["gpt2", "--prec"], {"--precision"}),
        (["gpt2", "--mode="], {"--mode=train", "--mode=eval"}),
        (["plan", "llama-3.1"], {"llama-3.1-8b", "llama-3.1-70b"}),
        (["plan", "gpt2", "--goal", ""], {"full", "lora", "qlora", "any"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
    ],
)
def test_a_word_is_completed_by_what_may_stand_there(words, among):
    found = candidates(words)
    assert among <= set(found)
    assert all(word.lower().startswith(words[-1].lower()) for word in found)


@pytest.mark.parametrize(("typed", "value"), [(["="], "bf16"), (["=", "amp-b"], "amp-bf16")])
def test_where_an_equals_sign_is_a_word_the_value_is_completed(typed, value):
    assert value in candidates(["gpt2", "--precision", *typed])


@pytest.mark.parametrize("words", [["gpt2", "--batch", ""], ["explain", ""], ["gpt2", ""]])
def test_where_nothing_is_known_the_shell_completes(words):
    assert candidates(words) == []


def in_shell(shell, script, tmp_path):
    program = tmp_path / "vrambudget"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vrambudget "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    own = {**os.environ, "PATH": path}
    done = subprocess.run(
        [shell, "-c", script], capture_output=True, text=True, env=own, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None or os.name == "nt", reason="no bash")
def test_bash_completes(tmp_path):
    script = f"""{SHELLS["bash"]}
        COMP_WORDS=(vrambudget plan gpt2 --goal ql); COMP_CWORD=4
        _vrambudget; echo "${{COMPREPLY[@]}}"
    """
    assert in_shell("bash", script, tmp_path) == ["qlora"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_completes(tmp_path):
    script = SHELLS["fish"] + "complete -C 'vrambudget plan gpt2 --goal ql'"
    assert in_shell("fish", script, tmp_path) == ["qlora"]
    log = tmp_path / "crash.log"
    log.touch()
    script = f"{SHELLS['fish']}complete -C 'vrambudget explain {tmp_path}/cra'"
    assert in_shell("fish", script, tmp_path) == [str(log)]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_zsh_completes(tmp_path):
    script = f"""compdef() {{ :; }}; compadd() {{ shift 2; print -l ${{(P)1}} }}
        {SHELLS["zsh"]}
        words=(vrambudget plan gpt2 --goal ql); CURRENT=5; _vrambudget
    """
    assert in_shell("zsh", script, tmp_path) == ["qlora"]


def test_a_shell_is_to_be_named(run):
    assert run("completion")[0] == 2
    assert run("completion", "bash")[1] == SHELLS["bash"]


def test_the_doctor_says_what_is_here_and_how_to_get_what_is_not(run, monkeypatch):
    monkeypatch.setattr("vrambudget.cli.doctor.installed_version", lambda _: "")
    code, out, _ = run("doctor", "--format", "json")
    rows = {row["what"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["numpy"]["found"] == "- (pip install 'vrambudget[sweep]')"
    assert rows["peft"]["found"] == "- (pip install 'peft')"
    assert {"Python", "torch's rules", "GPU", "PyTorch's CUDA build", "C compiler"} <= rows.keys()


def test_the_doctor_knows_every_extra_that_people_install():
    from vrambudget.cli.doctor import _EXTRAS  # noqa: PLC0415 - the table itself

    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    extras = tomllib.loads(project)["project"]["optional-dependencies"]
    named = {(extra, package) for extra, package, _ in _EXTRAS if extra}
    wanted = {
        (extra, requirement.partition(">")[0])
        for extra, requirements in extras.items()
        for requirement in requirements
        if not extra.startswith("test")
    }
    assert named == wanted


@pytest.fixture
def job_file(tmp_path):
    def write(batch, gpu='gpu = "12GB"'):
        file = tmp_path / f"job{batch}.toml"
        file.write_text(f'model = "gpt2"\nbatch = {batch}\nblock = 1024\n{gpu}\n')
        return str(file)

    return write


def test_jobs_that_fit_pass_the_check_and_others_fail_it(run, job_file):
    code, out, _ = run("check", job_file(1), job_file(64), "--format", "json")
    assert code == 1
    assert [row["fits"] for row in json.loads(out)] == [True, False]
    assert run("check", job_file(1))[0] == 0


def test_a_job_without_a_gpu_is_checked_on_a_named_one_alone(run, job_file):
    bare = job_file(1, gpu="")
    code, _, err = run("check", bare)
    assert code == 2
    assert "names no GPU" in err
    assert bare in err
    assert run("check", bare, "--gpu", "12GB")[0] == 0


def test_a_file_that_is_wrong_is_named(run, tmp_path):
    file = tmp_path / "job.toml"
    file.write_text('model = "gpt2"\nbatsch = 1\n')
    code, _, err = run("check", str(file))
    assert code == 2
    assert str(file) in err
