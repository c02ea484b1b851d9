"""The command line is a thin twin of the API: same names, clear mistakes, three exit codes."""

import argparse
import csv
import io
import json
import subprocess
import sys

import pytest

import vrambudget
from vrambudget.budget import Budget
from vrambudget.cli import main
from vrambudget.cli.examples import COMMON
from vrambudget.cli.job_options import add_job_options
from vrambudget.cli.output import progress_of
from vrambudget.cli.parser import COMMANDS, Parser
from vrambudget.config.job import Job
from vrambudget.planning import advice

SMALL = ("gpt2", "--batch", "1", "--block", "64")


@pytest.fixture
def run(capsys):
    def call(*words):
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def _options():
    parser = Parser()
    add_job_options(parser)
    return [action for action in parser._actions if action.dest != "help"]  # noqa: SLF001


def test_options_are_the_fields_of_a_job():
    assert {action.dest for action in _options()} == {*Job.model_fields, "config"}


def test_an_option_that_is_not_given_leaves_the_field_open():
    assert all(action.default is argparse.SUPPRESS for action in _options())


@pytest.mark.parametrize("action", _options(), ids=lambda action: action.dest)
def test_an_option_is_spelled_as_its_field_and_explained(action):
    name = action.dest.replace("_", "-")
    turned_off = {"cudnn_attention", "double_quant", "contiguous_gradients", "reduce_scatter"}
    turned_off.add("pin_memory")
    switches = {"keep-outputs": "--discard-outputs"}
    expected = f"--no-{name}" if action.dest in turned_off else switches.get(name, f"--{name}")
    assert expected in action.option_strings
    assert action.help


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (["--batch", "8", "--seq-len", "256"], {"batch": 8, "block": 256}),
        (["--batch-size", "8"], {"batch": 8}),
        (["--clip", "0.5", "--dropout", "0"], {"clip": 0.5, "dropout": 0.0}),
        (["--discard-outputs"], {"keep_outputs": False}),
        (
            ["--eval-batches", "2", "--eval-batch", "8", "--eval-first", "--eval-gather"],
            {"eval_batches": 2, "eval_batch": 8, "eval_first": True, "eval_gather": True},
        ),
        (["--use-cache"], {"use_cache": True}),
        (["--zero-grad", "late", "--weights", "bf16"], {"zero_grad": "late", "weights": "bf16"}),
        (["--expandable-segments"], {"expandable_segments": True}),
        (
            ["--quant", "nf4", "--no-double-quant", "--lora-rank", "8"],
            {"quant": "nf4", "double_quant": False, "lora_rank": 8},
        ),
        (["--optimizer-impl", "for-loop"], {"optimizer_impl": "for-loop"}),
        (["--gradient-accumulation-steps", "4"], {"grad_accum": 4}),
        (["--torch", "2.11.0+cu130"], {"torch": "2.11"}),
    ],
)
def test_words_become_the_job_that_the_same_keywords_make(words, fields):
    parser = Parser()
    add_job_options(parser)
    given = vars(parser.parse_args(words))
    assert Job.parse(given) == Job.parse(given | fields)
    assert set(given) == set(fields)


def test_json_is_the_api_s_budget(run):
    code, out, _ = run(*SMALL, "--gpu", "12GB", "--format", "json")
    assert code == 0
    assert Budget.from_json(out) == vrambudget.estimate("gpt2", batch=1, block=64, gpu="12GB")


def test_a_job_that_does_not_fit_exits_with_one(run):
    code, out, err = run(*SMALL, "--gpu", "500MiB")
    assert (code, err) == (1, "")
    assert out.startswith("DOES NOT FIT: ")
    assert "out of memory in step" in out


def test_the_table_says_what_to_try_next(run):
    job = ("gpt2", "--batch", "4096", "--block", "64", "--gpu", "12GB")
    code, out, _ = run(*job)
    (told,) = (line for line in out.splitlines() if line.startswith("next: "))
    options = told.removeprefix("next: ").partition(" makes it fit")[0].split()
    assert code == 1
    assert "--batch" in options
    assert run(*job, *options)[0] == 0


def test_the_report_is_printed_before_advice_is_worked_out(capsys, monkeypatch):
    printed = []

    advise_on = advice.advise_on

    def spying(*args, **named):
        printed.append(capsys.readouterr().out)
        return advise_on(*args, **named)

    monkeypatch.setattr(advice, "advise_on", spying)
    main([*SMALL, "--gpu", "500MiB"])
    assert printed[0].startswith("DOES NOT FIT: ")
    assert "out of memory in step" in printed[0]
    assert capsys.readouterr().out.startswith("\nnext: ")


def test_what_takes_long_is_told_on_a_terminal_alone_and_erased(capsys, monkeypatch):
    monkeypatch.setattr("vrambudget.cli.output._PATIENCE", -1.0)
    for terminal, told in ((False, ""), (True, "looking ...\r\x1b[K")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        with progress_of("looking") as progress:
            progress()
            progress()
        assert capsys.readouterr().err == told


def test_the_default_command_may_be_named(run):
    assert run("estimate", *SMALL, "--format", "csv") == run(*SMALL, "--format", "csv")


def test_options_may_come_first(run):
    assert run("--batch", "1", "--block", "64", "gpt2")[0] == 0


def test_an_unknown_suffix_is_refused_with_all_that_are_known(run):
    code, _, err = run("gpt2", "--block", "16", "-o", "x.docx")
    assert code == 2
    assert all(suffix in err for suffix in (".html", ".pdf", ".json", ".csv"))


def test_a_suffix_chooses_the_format_and_the_file_is_named_on_stderr(run, tmp_path):
    file = tmp_path / "budget.json"
    code, out, err = run(*SMALL, "-o", str(file))
    assert (code, out, err) == (0, "", f"wrote {file}\n")
    assert Budget.from_json(file.read_text()).model == "gpt2"


@pytest.mark.parametrize(
    ("words", "message", "tip"),
    [
        (["gtp2"], "there is no model 'gtp2'", "did you mean 'gpt2'"),
        ([*SMALL, "--gpu", "rtx 3061"], "not a known GPU", "did you mean 'rtx-3060'"),
        ([*SMALL, "--gpu", "0GB"], "more than 0", ""),
        (["gpt2", "--bacth", "8"], "unrecognized arguments: --bacth 8", "did you mean '--batch'"),
        (["gpt2", "--batch", "0"], "batch is 0", ""),
        (["gpt2", "--batch", "-1"], "batch is -1", ""),
        (["gpt2", "--batch", "x"], "invalid int value: 'x'", "--help"),
        (["gpt2", "--batch", "1.5"], "invalid int value", "--help"),
        (["gpt2", "--batch", "9" * 30], "batch is", ""),
        (["gpt2", "--batch", "2147483648"], "more than 64.00 TiB is no job", "for a slip"),
        (["gpt2", "--clip", "nan"], "clip is nan", ""),
        (["gpt2", "--dropout", "1"], "dropout is 1.0", ""),
        (["gpt2", "--block", "2048"], "positions for 1024", "--block 1024"),
        (["gpt2", "--precision", "fp23"], "invalid choice: 'fp23'", "did you mean 'fp32'"),
        (["gpt2", "--precision", "fp8"], "invalid choice: 'fp8'", "vrambudget rehearse"),
        (["gpt2", "--torch", "new"], "torch is 'new'", ""),
        (["--batch", "8"], "no model is named", "vrambudget models"),
        (["gpt2", "--mode", "forward", "--loop", "dpo"], "loop 'dpo' trains", ""),
        (["falcon-rw-1b", "--mode", "generate", "--cache", "static"], "ALiBi", "--cache dynamic"),
        (["gpt2", "serve"], "unrecognized arguments: serve", "vrambudget serve MODEL"),
        (["gpt2", "gpt2"], "unrecognized arguments: gpt2", "one word"),
        (["gpt2", ""], "unrecognized arguments: ", "--help"),
        (["sweep", "gpt2", "--block", "512", "1024"], "arguments: 1024", "--block 512,1024"),
        (["sweep", "gpt2", "--lora", "16"], "arguments: 16", "--lora-rank 16"),
        (["gpt2", "--qlora", "16"], "arguments: 16", "--lora-rank 16"),
        (["gpt2", "--batch", "2", "3"], "arguments: 3", "--help"),
        ([""], "no model ''", ""),
        ([*SMALL, "-o", "/nowhere/x.json"], "cannot write", ""),
        (["gpus", "--format", "xml"], "invalid choice: 'xml'", "vrambudget gpus --help"),
        (["validate", "/nowhere.jsonl"], "cannot read the records", ""),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_mistake_is_two_lines_and_exit_code_two(run, words, message, tip):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert tip in err
    assert "Traceback" not in err


def test_a_config_with_mistakes_names_file_and_key(run, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gpt2", "n_head": 5}))
    code, _, err = run(str(file))
    assert code == 2
    assert str(file) in err
    assert "n_head" in err


@pytest.mark.parametrize("command", ["gpus", "models"])
def test_lists_come_in_every_format(run, command):
    table = run(command)[1]
    records = json.loads(run(command, "--format", "json")[1])
    rows = list(csv.DictReader(io.StringIO(run(command, "--format", "csv")[1])))
    assert len(table.splitlines()) == len(records) + 2 == len(rows) + 2
    assert "source" in records[0]
    assert run(command, "--format", "markdown")[1].startswith("| ")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "usage: vrambudget" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMON)
def test_help_fits_one_screen_and_help_all_has_every_option(capsys, command):
    shown = []
    for words in (["--help"], ["--help", "all"]):
        with pytest.raises(SystemExit):
            main([command, *words])
        shown.append(capsys.readouterr().out)
    short, everything = shown
    assert len(short.splitlines()) <= 45
    assert f"`vrambudget {command} --help all` has" in short
    assert len(everything.splitlines()) > len(short.splitlines())
    assert str(sys.maxsize) not in everything
    assert "(default: ())" not in everything


@pytest.mark.parametrize("words", [["-h"], ["--help"]])
def test_help_lists_all_commands(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)
    assert max(map(len, out.splitlines())) <= 80


def test_a_sweep_by_requested_bytes_without_numpy_says_what_it_needs(run, monkeypatch):
    monkeypatch.delattr("vrambudget.planning.sweep_points", raising=False)
    monkeypatch.setitem(sys.modules, "vrambudget.planning.sweep_points", None)
    assert run("sweep", *SMALL)[0] == 0
    code, out, err = run("sweep", *SMALL, "--by", "requested")
    assert (code, out) == (2, "")
    assert "needs NumPy" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [(["nosuch"], "no model 'nosuch'"), (["mine:make", "--size", "x"], "--size 'x' should be")],
)
def test_record_looks_at_what_it_was_asked_before_it_loads_torch(run, monkeypatch, words, said):
    monkeypatch.setitem(sys.modules, "vrambudget.recording.command", None)
    code, out, err = run("record", *words)
    assert (code, out) == (2, "")
    assert said in err


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"vrambudget {vrambudget.__version__}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="the pipe is one of a POSIX shell")
def test_a_closed_pipe_is_quiet():
    command = f"{sys.executable} -m vrambudget gpus | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)  # noqa: S607
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("--gpu")
