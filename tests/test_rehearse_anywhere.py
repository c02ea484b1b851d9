"""Rehearsals, as far as they can be tested without PyTorch: messages, C code, history, process."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from vrambudget.config.gpus import find_gpu
from vrambudget.errors import VramBudgetError
from vrambudget.rehearse import gpu_variables, process, stub_libraries, torch_build
from vrambudget.rehearse.elf import c_names, read_library
from vrambudget.rehearse.left import Progress, read_records, unrecorded
from vrambudget.rehearse.record import Rehearsal
from vrambudget.rehearse.report import render
from vrambudget.rehearse.run import command_of, rehearse
from vrambudget.rehearse.timeline import read_timeline
from vrambudget.rehearse.torch_build import check_script
from vrambudget.rehearse.workplace import workplace

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="rehearsals need Linux")
COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) here")
T4 = find_gpu("t4")


def fake_python(folder, **answer):
    """Return a 'python' that answers the probe with this."""
    program = folder / "python3"
    found = {"python": str(program), "prefix": "/", "torch": None, "triton": None, **answer}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
    program.chmod(0o755)
    return str(program)


# ---- what cannot be rehearsed is said ---------------------------------------------------------


@LINUX
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param({}, "has no PyTorch", id="no torch"),
        pytest.param({"torch": "/t", "version": "2.11.0+cpu", "cuda": None}, "CUDA", id="cpu"),
        pytest.param({"torch": "/t", "version": "1.13.1", "cuda": "11.7"}, "1.13.1", id="old"),
    ],
)
def test_a_python_without_a_fit_pytorch_is_refused_by_name(tmp_path, answer, words):
    with pytest.raises(VramBudgetError, match=words) as caught:
        rehearse([fake_python(tmp_path, **answer), "train.py"], gpu=T4)
    assert caught.value.hint


@LINUX
def test_an_untried_version_names_the_tried_ones(tmp_path):
    python = fake_python(tmp_path, torch="/t", version="9.9.0", cuda="19.0")
    with pytest.raises(VramBudgetError) as caught:
        torch_build.find_torch([python])
    assert all(version in caught.value.message for version in ("9.9.0", *torch_build.TRIED))


def test_other_systems_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(VramBudgetError, match="darwin"):
        rehearse([sys.executable, "train.py"], gpu=T4)


@LINUX
def test_a_missing_compiler_is_named_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VramBudgetError, match="no C compiler") as caught:
        stub_libraries.cc("-c", "x.c")
    assert "gcc" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"steps": 0}, "steps", id="no steps"),
        pytest.param({"timeout": -1.0}, "time limit", id="negative timeout"),
        pytest.param({"timeout": float("nan")}, "time limit", id="timeout is no number"),
        pytest.param({"ranks": 0}, "ranks", id="no ranks"),
        pytest.param({"values": "twos"}, "'twos'", id="unknown numbers"),
        pytest.param({"values": "ones:3"}, "'ones:3'", id="a seed of what is not drawn"),
        pytest.param({"routing": "worst"}, "'worst'", id="two ways to route at once"),
        pytest.param({"snapshot": "/no/such/folder/x.pickle"}, "no such folder", id="snapshot"),
        pytest.param({"gpu": "gtx-nothing"}, "gtx-nothing", id="unknown GPU"),
    ],
)
def test_wrong_options_are_named(options, words):
    with pytest.raises(VramBudgetError, match=words):
        rehearse("train.py", **{"gpu": T4, **options})


def test_an_empty_command_and_an_unknown_one_are_named():
    with pytest.raises(VramBudgetError, match="nothing to rehearse"):
        rehearse([], gpu=T4)
    if sys.platform == "linux":
        with pytest.raises(VramBudgetError, match="no-such-command"):
            rehearse(["no-such-command"], gpu=T4)


def module_level():
    """Stand for a user's function."""


def test_a_script_a_command_and_a_function_become_commands(monkeypatch):
    monkeypatch.setenv("VRAMBUDGET_PYTHON", "/py")
    assert command_of("train.py") == ("/py", "train.py")
    assert command_of(["python", "train.py", "-x"]) == ("python", "train.py", "-x")
    python, flag, _, file, name = command_of(module_level)
    assert (python, flag, Path(file).name, name) == (
        "/py",
        "-c",
        Path(__file__).name,
        "module_level",
    )


def test_a_lambda_is_refused():
    with pytest.raises(VramBudgetError, match="another process"):
        command_of(lambda: None)


@LINUX
def test_the_python_of_a_command_is_its_own_or_that_of_its_first_line(tmp_path):
    python = fake_python(tmp_path)
    script = tmp_path / "launcher"
    script.write_text(f"#!{python}\n")
    script.chmod(0o755)
    assert torch_build.python_of([python]) == python
    assert torch_build.python_of([str(script)]) == python


@LINUX
def test_a_wrapper_script_that_is_named_as_the_python_is_the_python(tmp_path, monkeypatch):
    wrapper = tmp_path / "in-the-container"
    wrapper.write_text('#!/bin/sh\nexec python3 "$@"\n')
    wrapper.chmod(0o755)
    assert torch_build.python_of([str(wrapper)]) != str(wrapper)
    monkeypatch.setenv("VRAMBUDGET_PYTHON", str(wrapper))
    assert torch_build.python_of([str(wrapper)]) == str(wrapper)


def test_progress_is_told_for_the_first_steps_and_then_now_and_then(tmp_path, monkeypatch):
    said, now = [], [100.0]
    monkeypatch.setattr("vrambudget.rehearse.left.time.monotonic", lambda: now[0])
    progress, file = Progress(tmp_path, said.append), tmp_path / "progress-7"
    for step in range(1, 9):
        with file.open("a") as opened:
            opened.write(f"[{step}, 0, 0, {step * 2**20}]\n")
        progress()
        now[0] += 1
    assert [line.split(":")[0] for line in said] == [f"step {n}" for n in (1, 2, 3, 8)]
    assert said[0].endswith("1.00 MiB")


# ---- the C code ------------------------------------------------------------------------------


RUNTIME = ("addresses", "memory", "outside", "cudart")


@LINUX
@COMPILER
@pytest.mark.parametrize("cuda", ["12", "13"])
@pytest.mark.parametrize("source", sorted(p.name for p in stub_libraries.NATIVE.glob("*.c")))
def test_the_c_code_compiles_without_a_warning(tmp_path, cuda, source):
    numbers = (f"-DCUDA_MAJOR={cuda}", f"-DCUDA_VERSION={cuda}000", f"-DCUBLAS_VERSION={cuda}0100")
    out = tmp_path / "out.o"
    stub_libraries.cc(
        *stub_libraries.FLAGS, *numbers, "-c", stub_libraries.NATIVE / source, "-o", out
    )
    assert read_library(out).functions


ACCOUNTS = """
import ctypes, sys
rt = ctypes.CDLL(sys.argv[1])
def room():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    rt.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value
def take(n):
    address = ctypes.c_void_p()
    return rt.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(n)), address
MIB = 2**20
assert room() == (8 * MIB, 10 * MIB), room()
code, first = take(3 * MIB)             # pages of 2 MiB: 4 MiB
assert code == 0 and room()[0] == 4 * MIB
code, none = take(4 * MIB + 1)          # would be 6 MiB
assert code == 2 and none.value is None and room()[0] == 4 * MIB
assert rt.cudaGetLastError() == 2 and rt.cudaGetLastError() == 0
assert take(2**64 - 1)[0] == 2          # no overflow
code, second = take(4 * MIB)
assert code == 0 and room()[0] == 0 and second.value > first.value
rt.cudaFree(first)
assert room()[0] == 4 * MIB
code, third = take(1)
assert third.value > second.value       # addresses are never handed out again
seen = []
callback = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(seen.append)
rt.virtual_gpu_on_read(callback)
host = ctypes.create_string_buffer(b"xxxx", 4)
rt.cudaMemcpy(third, host, ctypes.c_size_t(4), 1)
assert host.raw == b"xxxx" and not seen
rt.cudaMemcpy(host, third, ctypes.c_size_t(4), 2)
assert host.raw == b"\\0" * 4 and seen == [4]
answer = rt.virtual_gpu_answer
answer.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong)
for on, told, read, tells in ((1, 0, 7, 0), (1, 1, 7, 1), (0, 0, 0, 1)):
    answer(on, told, 7)
    seen.clear()
    rt.cudaMemcpy(host, third, ctypes.c_size_t(4), 2)
    assert int.from_bytes(host.raw, "little") == read and len(seen) == tells
print("accounts hold")
"""


@LINUX
@COMPILER
@pytest.mark.parametrize("cuda", ["12", "13"])
def test_the_runtime_accounts_for_each_page_and_reads_zeros(tmp_path, cuda):
    library = tmp_path / "libcudart.so"
    sources = [stub_libraries.NATIVE / f"{name}.c" for name in RUNTIME]
    numbers = (f"-DCUDA_MAJOR={cuda}", f"-DCUDA_VERSION={cuda}000")
    stub_libraries.cc(*stub_libraries.FLAGS, *numbers, "-shared", *sources, "-o", library, "-ldl")
    small = replace(T4, capacity_bytes=10 * 2**20, context_bytes=2 * 2**20)
    done = subprocess.run(
        [sys.executable, "-c", ACCOUNTS, str(library)],
        env={**os.environ, **gpu_variables.environment(small)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "accounts hold\n", done.stderr


@LINUX
@COMPILER
def test_a_library_says_what_it_needs_and_exports(tmp_path):
    source = tmp_path / "x.c"
    source.write_text(
        'double cos(double); const char *n = "cuMemX"; double f(double x) { return cos(x); }'
    )
    library = tmp_path / "libx.so.7"
    flags = (
        "-shared",
        "-fPIC",
        "-Wl,-soname,libx.so.7",
        "-Wl,--no-as-needed",
        "-Wl,-rpath,$ORIGIN/y",
    )
    stub_libraries.cc(source, "-o", library, *flags, "-lm")
    found = read_library(library)
    assert found.soname == "libx.so.7"
    assert "f" in found.functions
    assert "cos" in found.undefined
    assert any(name.startswith("libm.") for name in found.needed)
    assert found.folders == (tmp_path / "y",)
    assert c_names(library, r"cu[A-Z]\w+") == {"cuMemX"}


def test_a_file_that_is_no_library_is_named(tmp_path):
    file = tmp_path / "x.so"
    file.write_text("no library")
    with pytest.raises(VramBudgetError, match="ELF"):
        read_library(file)


def test_an_unlisted_architecture_takes_the_limits_of_the_nearest_older_one():
    numbers = [
        gpu_variables.environment(replace(T4, compute_capability=cc))["VRAMBUDGET_GPU"].split()[6:]
        for cc in ((8, 0), (8, 8), (8, 7), (3, 5), (7, 0))
    ]
    assert numbers[0] == [str(163 * 1024), "2048", "32"]
    assert numbers[1] == numbers[2]
    assert numbers[3] == numbers[4]


# ---- the command's process ---------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path):
    return process.ProcessPlan(tmp_path, (tmp_path / "libcuda.so.1",))


@LINUX
def test_the_exit_code_is_the_commands_own(plan):
    assert process.run(["sh", "-c", "exit 7"], T4, plan).exit_code == 7
    assert process.run(["sh", "-c", "kill -9 $$"], T4, plan).exit_code == 128 + 9


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"  # Z: dead, not waited for
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_end(pids):
    """Wait a little: a process that was killed may need a moment to die."""
    limit = time.monotonic() + 5
    while any(map(is_alive, pids)) and time.monotonic() < limit:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


def pids(file):
    return [int(word) for word in file.read_text().split()]


@LINUX
def test_a_rank_is_told_what_torchrun_would_tell_it(plan):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
    told = process.environment(T4, replace(plan, ranks=8), {"RANK": "5"})
    assert [told[name] for name in names] == ["0", "0", "8", "127.0.0.1"]
    assert json.loads(told["VRAMBUDGET_REHEARSAL"])["ranks"] == 8
    assert told["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    third = process.environment(T4, replace(plan, ranks=8, rank=2), {})
    assert [third[name] for name in names] == ["2", "2", "8", "127.0.0.1"]
    alone = process.environment(T4, plan, {"RANK": "5"})
    assert alone["RANK"] == "5"
    assert "WORLD_SIZE" not in alone


@LINUX
def test_what_is_compiled_finds_an_empty_cache_each_time(plan):
    told = process.environment(T4, plan, {"TORCHINDUCTOR_CACHE_DIR": "theirs"})
    folder = Path(told["TORCHINDUCTOR_CACHE_DIR"])
    assert folder.parent == plan.folder  # a rehearsal's own
    assert not folder.exists()


@LINUX
def test_sets_of_strings_are_iterated_in_one_order_unless_the_user_names_another(plan):
    assert process.environment(T4, plan, {})["PYTHONHASHSEED"] == "0"
    assert process.environment(T4, plan, {"PYTHONHASHSEED": "7"})["PYTHONHASHSEED"] == "7"


@LINUX
def test_what_outlives_its_time_is_killed_with_its_children(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.3)
    file = tmp_path / "pids"
    script = f"trap '' INT; sleep 60 & echo $$ $! > {file}; wait; sleep 60"
    ended = process.run(["sh", "-c", script], T4, replace(plan, timeout=0.5))
    assert ended.cut == "timeout"
    assert ended.seconds < 10
    assert all_end(pids(file))


@LINUX
def test_an_interrupt_is_handed_on_and_leaves_no_process(plan, tmp_path):
    file, before = tmp_path / "pids", signal.getsignal(signal.SIGINT)

    def interrupt():
        while not file.exists() or not file.read_text().endswith("\n"):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    ended = process.run(["sh", "-c", f"echo $$ > {file}; exec sleep 60"], T4, plan)
    assert (ended.cut, ended.exit_code) == ("interrupt", 128 + signal.SIGINT)
    assert all_end(pids(file))
    assert signal.getsignal(signal.SIGINT) is before


@LINUX
def test_an_interrupt_while_the_command_starts_leaves_no_process(plan, monkeypatch):
    started, start = [], subprocess.Popen

    def interrupted(*args, **settings):
        started.append(start(*args, **settings))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    ended = process.run(["sleep", "60"], T4, plan)
    assert (ended.cut, ended.exit_code) == ("interrupt", 128 + signal.SIGINT)
    assert not is_alive(started[0].pid)


KILLED = """
import sys; from pathlib import Path
from vrambudget.config.gpus import find_gpu
from vrambudget.rehearse import process
folder = Path(sys.argv[1])
plan = process.ProcessPlan(folder, (folder / "libcuda.so.1",))
process.run(["sh", "-c", f"echo $$ > {folder}/pids; exec sleep 60"], find_gpu("t4"), plan)
"""


@LINUX
def test_a_command_dies_with_the_rehearsal_that_was_killed(tmp_path):
    file = tmp_path / "pids"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    parent = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], env=environment)
    limit = time.monotonic() + 30
    while (not file.exists() or not file.read_text()) and time.monotonic() < limit:
        time.sleep(0.02)
    (child,) = pids(file)
    assert is_alive(child)
    parent.kill()
    parent.wait()
    assert all_end([child])


LEAVES = """
import os, subprocess, sys, time
away = subprocess.Popen(["sleep", "1001"], start_new_session=True, env={})
if os.fork() == 0:
    os.setsid()
    if (daemon := os.fork()) == 0:
        time.sleep(1001)
    open(sys.argv[1] + ".part", "w").write(f"{os.getppid()} {away.pid} {daemon}")
    os.rename(sys.argv[1] + ".part", sys.argv[1])
    os._exit(0)
if sys.argv[2] == "waits":
    time.sleep(1001)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


@LINUX
def test_what_left_the_session_ends_with_the_command(plan, tmp_path):
    command = [sys.executable, "-S", "-c", LEAVES, str(tmp_path / "pids"), "ends"]
    assert process.run(command, T4, plan).exit_code == 0
    assert all_end(pids(tmp_path / "pids"))


REHEARSES = """
import sys
from vrambudget.config.gpus import find_gpu
from vrambudget.rehearse import process, workplace
with workplace.workplace() as (folder, lock):
    plan = process.ProcessPlan(folder, (folder / "libcuda.so.1",), lock=lock)
    process.run(sys.argv[1:], find_gpu("t4"), plan)
"""


@pytest.fixture
def leaving(tmp_path):
    """Rehearse LEAVES; return the rehearsal, its supervisor (a pid), and what left the session."""
    command = [sys.executable, "-S", "-c", LEAVES, str(tmp_path / "pids"), "waits"]
    package = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": package, "TMPDIR": str(tmp_path)}
    rehearsal = subprocess.Popen([sys.executable, "-c", REHEARSES, *command], env=environment)
    limit = time.monotonic() + 30
    left, notes = [0], ""
    while not all(f"\n{pid} " in f"\n{notes}" for pid in left) and time.monotonic() < limit:
        time.sleep(0.02)
        left = pids(tmp_path / "pids") if (tmp_path / "pids").exists() else left
        notes = "".join(file.read_text() for file in tmp_path.glob("vrambudget-*/below"))
    return rehearsal, int(Path(f"/proc/{left[0]}/stat").read_text().split()[3]), left


@LINUX
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_what_left_the_session_and_the_folder_end_with_the_rehearsal(tmp_path, leaving, number):
    rehearsal, _, left = leaving
    rehearsal.send_signal(number)
    rehearsal.wait()
    assert all_end(left)
    limit = time.monotonic() + 30
    while (folders := [*tmp_path.glob("vrambudget-*")]) and time.monotonic() < limit:
        time.sleep(0.02)
    assert not folders


@LINUX
def test_what_left_the_session_ends_where_the_supervisor_is_killed(leaving):
    rehearsal, supervisor, left = leaving
    os.kill(supervisor, signal.SIGKILL)
    assert rehearsal.wait(30) == 0
    assert all_end(left)


@LINUX
def test_what_both_left_when_they_were_killed_at_once_ends_with_the_next(
    tmp_path, leaving, monkeypatch
):
    rehearsal, supervisor, left = leaving
    os.kill(supervisor, signal.SIGKILL)
    rehearsal.kill()
    rehearsal.wait()
    assert all_end([supervisor])  # it holds the folder's lock until it is gone
    _, away, daemon = left
    assert is_alive(away)
    assert is_alive(daemon)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with workplace():
        assert all_end(left)
    assert not [*tmp_path.glob("vrambudget-*")]


@LINUX
def test_the_folder_of_a_rehearsal_that_was_killed_goes_with_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "vrambudget-rehearsal-dead").mkdir()
    (tmp_path / "vrambudget-rehearsal-dead" / "lock").touch()
    with workplace() as (first, _), workplace() as (second, _):
        assert {*tmp_path.iterdir()} == {first, second}
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["python", "nofile.py"], True),
        (["python3.12", "-u", "-W", "ignore", "nofile.py", "--lr", "1"], True),
        (["python", "-c", "pass"], False),
        (["python", "-um", "nofile"], False),
        (["torchrun", "nofile.py"], False),
        (["python"], False),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_a_script_that_does_not_exist_is_named(words, missing):
    if missing:
        with pytest.raises(VramBudgetError, match="there is no script"):
            check_script(words)
    else:
        check_script(words)


def leave(folder, name, content=""):
    (folder / name).write_text(content)


def test_a_process_that_was_killed_counts_with_what_it_told_after_its_last_step(tmp_path):
    leave(tmp_path, "record-1.json", json.dumps({"pid": 1, "peaks": [1, 1, 9]}))
    leave(tmp_path, "progress-1", "[5, 1, 1, 9]\n")
    leave(tmp_path, "progress-2", "[1, 2, 3, 4]\n[2, 20, 30, 40]\n[3, 2")
    killed, other = read_records(tmp_path)
    assert (killed["pid"], killed["steps"], killed["peaks"]) == (2, 2, [20, 30, 40])
    assert killed["ended"] == "killed"
    assert other["pid"] == 1


def test_a_process_that_used_the_card_and_was_not_seen_is_named(tmp_path):
    records = [{"pid": 7}]
    assert unrecorded(tmp_path, []) == "nothing was recorded: no Python process imported torch"
    leave(tmp_path, "used-7")
    assert unrecorded(tmp_path, records) is None
    leave(tmp_path, "used-8")
    assert "pid 8" in unrecorded(tmp_path, records)


# ---- the history -------------------------------------------------------------------------------

MIB = 2**20


def history(*events):
    """Return a record's columns from (action, address, bytes, number of the stack)."""
    actions, addresses, sizes, stacks = zip(*events, strict=True)
    lines = [("", "", [["/u/model.py", 5, "build"]]), ("", "", []), ("", "", [["/u/t.py", 9, "f"]])]
    return {
        "action": actions,
        "address": addresses,
        "bytes": sizes,
        "stream": [0] * len(events),
        "stack": stacks,
        "stacks": lines,
    }


def record(**changes):
    """One training step: weight 1, activation 2, gradient 3, temporary 4, state 5; then 6."""
    full = {
        "history": history(
            ("alloc", 1, 10 * MIB, 0),
            ("alloc", 2, 20 * MIB, 2),
            ("alloc", 3, 10 * MIB, 1),
            ("alloc", 4, 5 * MIB, 1),  # the peak: 45
            ("free_requested", 4, 5 * MIB, 1),
            ("free_requested", 2, 20 * MIB, 1),
            ("alloc", 5, 20 * MIB, 2),  # 40
            ("free_requested", 3, 10 * MIB, 2),
            ("alloc", 6, 8 * MIB, 2),  # 38
        ),
        "marks": [
            ["backward", 2, 0, {}, 0],
            ["forward", 4, 2, {}, 0],
            ["optimizer_step", 4, 2, {"parameter": [1], "gradient": [3]}, 0],
            ["forward", 5, 2, {"optimizer_state": [5]}, 1],
        ],
        "counts": [6, 3],
    }
    return {**full, **changes}


def test_the_peak_is_split_by_what_its_blocks_turn_out_to_be():
    peak = read_timeline(record()).peak
    assert (peak.step, peak.phase, peak.line) == (1, "backward", "(inside backward)")
    assert peak.requested_bytes == 45 * MIB == sum(peak.by_category.values())
    assert peak.by_category["parameter"] == 10 * MIB
    assert peak.by_category["gradient"] == 10 * MIB
    assert peak.by_category["activation"] == 20 * MIB
    assert peak.by_category["temporary"] == 5 * MIB
    assert peak.largest[0].line == "t.py:9 f"


def test_each_phase_of_each_step_has_its_peak():
    phases = {(p.step, p.phase): p.requested_bytes // MIB for p in read_timeline(record()).phases}
    assert phases == {
        (1, "forward"): 30,
        (1, "backward"): 45,
        (1, "optimizer_step"): 40,
        (2, "forward"): 40,
    }


def test_a_history_that_lost_its_beginning_says_so():
    timeline = read_timeline(record(counts=[106, 103], marks=[["optimizer_step", 104, 102, {}, 0]]))
    assert not timeline.complete
    assert read_timeline(record()).complete


def test_a_script_without_optimizer_has_a_peak_too():
    peak = read_timeline(record(marks=[], parameters=[1])).peak
    assert peak.phase == "build"
    assert peak.by_category["parameter"] == 10 * MIB
    assert peak.by_category["other"] == 35 * MIB


def rehearsal(**changes):
    """Return what was seen of the step above."""
    timeline = read_timeline(record())
    seen = Rehearsal(
        command=("python", "t.py"),
        gpu=T4.name,
        capacity_bytes=T4.capacity_bytes,
        context_bytes=100 * MIB,
        versions={"torch": "2.11.0"},
        ended="finished",
        exit_code=0,
        error=None,
        seconds=1.0,
        steps=1,
        step_unit="optimizer step",
        peak_requested_bytes=45 * MIB,
        peak_allocated_bytes=45 * MIB,
        peak_reserved_bytes=60 * MIB,
        peak=timeline.peak,
        phases=timeline.phases,
        out_of_memory=(),
        warnings=("values are zero",),
    )
    return replace(seen, **changes)


def test_the_report_names_the_verdict_the_parts_and_the_warnings():
    result = rehearsal()
    text = render(result)
    assert "ran to its end: 1 optimizer step," in text
    assert f"{160 * MIB:,}" in text  # reserved and context
    assert "warning: values are zero" in text
    assert "GiB" in text.splitlines()[0]
    assert json.loads(json.dumps(result.to_dict()))["device_peak_bytes"] == 160 * MIB
