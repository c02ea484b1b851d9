"""Streams, files and variables of the environment as they may be found: never a traceback.

Exit codes: 0 done, 1 does not fit, 2 could not be done, with `error: ...` on stderr.
"""

import json
import os
import stat
import subprocess
import sys
import time

import pytest

from vrambudget.cli import main
from vrambudget.errors import VramBudgetError
from vrambudget.files import append_line, cache_folder, read_file, write_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="devices and shells of Linux")
TINY = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 50}
OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "me.json").write_text(json.dumps(TINY))
    (tmp_path / "oom.log").write_text(OOM)
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(folder, capsys):  # noqa: ARG001 - in that folder
    """Return what runs the program with words and gives code, stdout, stderr."""

    def run(*words):
        return main(words), *capsys.readouterr()

    return run


@pytest.fixture
def shell(folder):
    """Return what runs a line of bash, `$V` being the program, and gives code, stdout, stderr."""

    def run(line):
        ended = subprocess.run(
            ["bash", "-c", line],  # noqa: S607
            cwd=folder,
            env={**os.environ, "V": f"{sys.executable} -m vrambudget"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "Traceback" not in ended.stderr
        assert "Exception ignored" not in ended.stderr
        return ended.returncode, ended.stdout, ended.stderr

    return run


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("$V explain oom.log > /dev/full", "No space left"),
        ("$V --help > /dev/full", "No space left"),
        ("$V gpus >&-", "standard output is closed"),
        ("$V explain - <&-", "standard input is closed"),
        ("yes | $V explain -", "more than 64 MiB"),
    ],
)
def test_streams_that_do_not_serve_are_said_and_exit_with_two(shell, line, words):
    code, _, err = shell(line)
    assert err.startswith("error: ")
    assert words in err
    assert code == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name a model"),
        (["me.json", "--block", "8", "-o", "me.json"], "would overwrite"),
        (["validate", "oom.log", "-o", "oom.log"], "would overwrite"),
        (["explain", "/dev/zero"], "not a regular file"),
        (["explain", "fifo"], "not a regular file"),
        (["explain", "."], "not a regular file"),
        (["validate", "fifo"], "not a regular file"),
        (["measure", "--jobs", "fifo"], "not a regular file"),
        (["validate", "/dev/zero"], "not a regular file"),
        (["~nosuchuser/x"], "leads nowhere"),
        (["gpt2", "--batch", "9" * 5000], "invalid int value"),
    ],
    ids=lambda words: " ".join(words)[:40] if isinstance(words, list) else "",
)
def test_files_and_words_that_do_not_serve_are_said_and_exit_with_two(call, words, told):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert told in err
    assert len(err) < 1000


def test_a_folder_s_own_configuration_is_not_overwritten(call, folder):
    (folder / "config.json").write_text(json.dumps(TINY))
    code, _, err = call(".", "--block", "8", "-o", "config.json")
    assert (code, "would overwrite" in err) == (2, True)
    assert json.loads((folder / "config.json").read_text()) == TINY


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("HF_HOME", "~nosuchuser", "HF_HOME=~nosuchuser"),
        ("HF_HUB_CACHE", "~nosuchuser", "HF_HUB_CACHE=~nosuchuser"),
        ("XDG_CACHE_HOME", "~nosuchuser", "XDG_CACHE_HOME=~nosuchuser"),
        ("HF_ENDPOINT", "http://[::1", "HF_ENDPOINT is 'http://[::1'"),
        ("HF_ENDPOINT", "http://a:b", "HF_ENDPOINT is 'http://a:b'"),
        ("HF_ENDPOINT", f"http://{'a' * 100}", "out of reach"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(call, monkeypatch, name, value, told):
    if name == "HF_ENDPOINT":
        pytest.importorskip("huggingface_hub")  # without it nothing is asked
    for other in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(other, raising=False)
    for proxy in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    monkeypatch.setenv(name, value)
    code, _, err = call("nobody/nothing-of-the-kind")
    assert code == 2
    assert told in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "VRAMBUDGET_CACHE"])
def test_a_cache_that_is_no_folder_is_said(monkeypatch, name):
    monkeypatch.setenv(name, "~nosuchuser")
    with pytest.raises(VramBudgetError, match="leads nowhere"):
        cache_folder()


def test_the_cache_is_where_our_own_variable_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    monkeypatch.setenv("VRAMBUDGET_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_talk_that_nobody_hears_changes_no_exit_code(shell, redirection):
    assert shell(f"$V gtp2 {redirection}")[0] == 2


@pytest.mark.parametrize("command", ["explain oom.log", "--help"])
def test_a_reader_that_has_seen_enough_ends_nothing(shell, command):
    assert shell(f"$V {command} | true; exit ${{PIPESTATUS[0]}}") == (0, "", "")


@pytest.mark.parametrize("suffix", ["json", "csv", "md", "html", "pickle"])
def test_a_folder_whose_name_is_not_utf_8_is_reported_like_any_other(call, folder, suffix):
    bad = folder / os.fsdecode(b"bad\xff")
    bad.mkdir()
    (bad / "config.json").write_text(json.dumps(TINY))
    assert call(str(bad), "--block", "8", "-o", f"x.{suffix}")[0] == 0
    assert b"udcff" in (folder / f"x.{suffix}").read_bytes() or suffix == "pickle"


def test_escape_sequences_of_names_and_keys_reach_no_terminal(call, folder):
    bad = folder / "e\x1b[31m"
    bad.mkdir()
    (bad / "config.json").write_text(json.dumps({**TINY, "n_layer\x1b": 1, "\x1b[2J": 1}))
    code, out, err = call(str(bad), "--block", "8")
    assert (code, "\x1b" in err) == (2, False)
    assert "e\\x1b[31m/config.json" in err
    (bad / "config.json").write_text(json.dumps({**TINY, "\x1b[2J": 1}))
    code, out, err = call(str(bad), "--block", "8")
    assert (code, err, "\x1b" in out) == (0, "", False)
    assert "e\\x1b[31m, " in out


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "x.json"
    file.write_bytes(b"old")
    file.chmod(0o640)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", full)
        with pytest.raises(VramBudgetError, match="cannot write the result: No space left"):
            write_file(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]

    write_file(file, b"new")
    assert file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path):
    (tmp_path / "link").symlink_to("x.json")
    write_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "x.json").read_bytes() == b"new"


def test_a_file_is_read_up_to_a_bound(tmp_path):
    file = tmp_path / "x"
    file.write_bytes(b"12345")
    assert read_file(file, "log", 5) == b"12345"
    with pytest.raises(VramBudgetError, match="more than 4 B"):
        read_file(file, "log", 4)


def test_records_are_appended_line_by_line(tmp_path):
    file = tmp_path / "x"
    append_line(file, "1")
    append_line(file, "2")
    assert file.read_text() == "1\n2\n"
    with pytest.raises(VramBudgetError, match="cannot write the record"):
        append_line(tmp_path, "3")


@pytest.mark.parametrize(
    "line",
    [
        " " * 20_000,
        "1" * 20_000,
        "step " + "1" * 20_000,
        "|" * 20_000 + "x",
        " |" * 10_000 + "x",
        "(rank=" + "1" * 20_000,
        "(rank=1" * 5_000,
        "-" * 20_000,
        "10%|" + "1%" * 10_000,
        "allocated" + "1" * 20_000,
        "File a" + ":1" * 10_000,
        'File "x", line ' + "1" * 5_000 + ", in f",
        "Tried to allocate " + "1" * 5_000 + " GiB",
    ],
    ids=lambda line: line[:20].strip() or "blanks",
)
def test_no_line_of_a_log_takes_long(call, folder, line):
    (folder / "train.log").write_text(f"{line}\n{OOM}{line}\n" * 3)
    started = time.process_time()
    assert call("explain", "train.log")[0] == 0
    assert time.process_time() - started < 3
