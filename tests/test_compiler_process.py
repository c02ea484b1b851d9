"""The process that PyTorch's compiler runs in: what ends it is an error, and ends nothing else."""

import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from operator import attrgetter
from pathlib import Path

import pytest

from vrambudget.compiled import process
from vrambudget.compiled.config import compiled_config
from vrambudget.compiled.process import elsewhere
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.scenario import resolve
from vrambudget.traced.config import TracedConfig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it compiles on Linux alone")


def test_a_function_is_called_in_a_process_that_the_next_one_does_not_share():
    first, second = elsewhere(os.getpid), elsewhere(os.getpid)
    assert len({first, second, os.getpid()}) == 3
    assert elsewhere(os.getppid) == os.getpid()


def test_it_runs_where_it_was_asked_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VRAMBUDGET_CACHE", "here")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "only_there.py").write_text("NAME = 'found'\n")
    assert elsewhere(Path.cwd) == tmp_path
    assert elsewhere(os.getenv, "VRAMBUDGET_CACHE") == "here"
    assert elsewhere(eval, "__import__('only_there').NAME") == "found"


def test_a_process_that_a_signal_ends_is_an_error_that_names_it_and_the_way_out():
    code = "__import__('os').write(2, b'corrupted double-linked list\\n'), __import__('os').abort()"
    with pytest.raises(VramBudgetError, match=r"ended by SIGABRT: corrupted double-linked") as told:
        elsewhere(eval, code)
    assert "rehearse" in told.value.hint
    with pytest.raises(VramBudgetError, match=r"SIGKILL; main memory may have been full"):
        elsewhere(eval, "__import__('os').kill(__import__('os').getpid(), 9)")
    with pytest.raises(VramBudgetError, match="ended with exit code 3"):
        elsewhere(os._exit, 3)
    assert elsewhere(len, "next") == 4


def test_one_that_does_not_come_up_says_why(monkeypatch):
    monkeypatch.setattr(process, "_ANSWER", "raise ImportError('libtorch_cpu.so is not there')")
    with pytest.raises(VramBudgetError, match=r"exit code 1: ImportError: libtorch_cpu\.so"):
        elsewhere(len, "never")


def test_a_mistake_arrives_as_it_was_made():
    with pytest.raises(NotModelledError, match="no such kernel") as told:
        elsewhere(_raises, NotModelledError("no such kernel", hint="rehearse it", where="here"))
    assert (told.value.hint, told.value.where) == ("rehearse it", "here")
    assert told.value.__notes__ == ["in here", "tip: rehearse it"]


def test_a_bug_is_one_sentence_and_not_that_the_job_does_not_fit():
    with pytest.raises(VramBudgetError, match="ended with exit code 1: ZeroDivisionError") as told:
        elsewhere(eval, "1 / 0")
    assert "rehearse" in told.value.hint


def test_progress_is_logged_here(caplog):
    caplog.set_level("INFO", "vrambudget")
    elsewhere(_logs, "compiling ...")
    assert caplog.messages == ["compiling ..."]


def test_an_interrupt_ends_both(tmp_path):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has none
    told = tmp_path / "told"
    with pytest.raises(KeyboardInterrupt):
        elsewhere(_signals, os.getpid(), signal.SIGINT, str(told))
    assert not _lives(int(told.read_text()))


def test_what_it_compiles_ends_with_the_process_that_asked(tmp_path):
    """As where a notebook's kernel is killed."""
    script = (
        "import os, sys, test_compiler_process as t\n"
        "t.elsewhere(t._signals, os.getpid(), t.signal.SIGKILL, sys.argv[1])"
    )
    paths = os.pathsep.join([*map(str, Path(__file__).parents[:2]), *sys.path])
    told = tmp_path / "told"
    done = subprocess.run(
        [sys.executable, "-c", script, str(told)],
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    compiler = int(told.read_text())
    for _ in range(400):
        if not _lives(compiler):
            break
        time.sleep(0.05)
    assert not _lives(compiler)


def test_a_compiled_configuration_is_pickled_by_what_makes_it():
    config = resolve("nanogpt", block=64, gpu="A100", compile=True).config
    again = pickle.loads(pickle.dumps(config))  # noqa: S301
    assert [*again] == [*config]
    assert [kind.__name__ for kind in type(again).__mro__] == [
        kind.__name__ for kind in type(config).__mro__
    ]


def test_a_configuration_without_rules_is_there_what_it_is_here():
    plain = TracedConfig.model_construct(model_type="codegen", keys={"n_layer": 1})
    config = compiled_config(plain, plain.keys)
    assert elsewhere(attrgetter("checked_with"), config) == config.checked_with


def _raises(error):
    raise error


def _logs(text):
    logging.getLogger("vrambudget").info(text)


def _signals(process_id, number, told):
    Path(told).write_text(str(os.getpid()))
    os.kill(process_id, number)
    signal.pause()


def _lives(process_id) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
