"""Rehearsals with a CUDA build of PyTorch, on a machine that needs no GPU.

They use the PyTorch of VRAMBUDGET_PYTHON, or of the Python that runs the tests.
"""

import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from virtual import PYTHON, VIRTUAL_GPU, run

from vrambudget.cli import main
from vrambudget.rehearse import rehearse
from vrambudget.rehearse.events import rehearse_job
from vrambudget.rehearse.report import render

MIB = 2**20


pytestmark = VIRTUAL_GPU

TRAIN = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(1024, 1024, bias=False), torch.nn.ReLU()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(5):
    x = torch.zeros(256, 1024, device="cuda")
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if "read" in sys.argv: print(loss.item())
    if "select" in sys.argv: x[x > 0].sum()
    if "fail" in sys.argv: raise ValueError("my own reasons")
    if "big" in sys.argv: torch.empty(2**30, device="cuda")
print("end")
"""


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(TRAIN)
    return file


def test_bytes_and_categories_are_those_that_arithmetic_says(script):
    result = run(script)
    assert (result.ended, result.exit_code, result.steps) == ("finished", 0, 5)
    peak = result.peak
    assert peak.requested_bytes == result.peak_requested_bytes == sum(peak.by_category.values())
    assert peak.by_category["parameter"] == 4 * MIB  # 1024 x 1024 float32
    assert peak.by_category["optimizer_state"] == 4 * MIB  # momentum
    assert result.peak_reserved_bytes % (2 * MIB) == 0
    assert result.device_peak_bytes == result.peak_reserved_bytes + result.context_bytes


def test_it_stops_after_the_steps_asked_for(script):
    result = run(script, steps=2)
    assert (result.ended, result.exit_code, result.steps) == ("steps", 0, 2)


def test_it_stops_after_the_seconds_asked_for(tmp_path):
    endless = tmp_path / "endless.py"
    endless.write_text("import torch, time\ntorch.empty(9, device='cuda')\ntime.sleep(600)\n")
    result = run(endless, timeout=4)
    assert (result.ended, result.exit_code) == ("timeout", 2)  # no iteration was over
    assert "before an iteration was over" in result.error
    assert result.peak_requested_bytes == 36
    assert result.seconds < 15


def test_a_script_that_fails_keeps_its_exit_code_and_error(script):
    result = run(script, "fail")
    assert (result.ended, result.exit_code) == ("failed", 1)
    assert result.error == "ValueError: my own reasons"


def test_output_and_traceback_are_the_scripts_own(script):
    code = "import sys; from vrambudget.rehearse import rehearse; rehearse(sys.argv[1:], gpu='t4')"
    done = subprocess.run(
        [sys.executable, "-c", code, PYTHON, str(script), "read", "fail"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "0.0\n"
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ValueError: my own reasons\n")


def test_out_of_memory_says_where_and_for_how_much(script):
    result = run(script, "big", gpu="1GiB")
    (event,) = result.out_of_memory
    assert result.ended == "out of memory"
    assert not result.fits
    assert event.requested_bytes == 4 * 2**30
    assert event.allocated_bytes + event.free_bytes <= result.capacity_bytes
    assert not event.handled
    assert 'torch.empty(2**30, device="cuda")' in event.stack[-1]
    assert render(result).splitlines()[-3].startswith("next: `--batch-from 1:64`")


@pytest.mark.parametrize(("size", "fits"), [("100TB", True), ("100MiB", False)])
def test_cards_of_any_size_behave(script, size, fits):
    assert run(script, gpu=size, steps=1).fits is fits


def test_values_that_are_read_are_warned_of_and_shapes_made_of_them(script):
    warnings = run(script, "read", "select").warnings
    assert any("train.py:11" in w and "zero" in w for w in warnings)
    assert any("train.py:12 makes a shape" in w for w in warnings)
    assert not run(script).warnings


CALLS = """
import torch
q = torch.zeros(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16)
torch.nn.functional.scaled_dot_product_attention(
    q, q, q
)
torch.nn.Conv2d(3, 8, 3).cuda()(torch.zeros(8, 3, 64, 64, device="cuda"))
torch.nn.LSTM(16, 16).cuda()(torch.zeros(5, 2, 16, device="cuda"))
"""


@pytest.mark.parametrize("gpu", ["h100", "a100-80gb"])
def test_what_a_real_card_computes_with_cudnn_and_is_not_asked_of_it_is_warned_of(tmp_path, gpu):
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    (warning,) = run(file, gpu=gpu).warnings
    assert "calls.py:8" in warning
    assert "real" in warning


RANKS = """
import sys, torch
from torch import nn
kind = sys.argv[1]
model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8))).cuda()
if kind != "alone":
    torch.distributed.init_process_group("nccl")
    assert torch.distributed.get_world_size() == 8
if kind == "ddp":
    model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
if kind == "fsdp":
    from torch.distributed.fsdp import fully_shard
    for module in (*model, model):
        fully_shard(module)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    model(torch.zeros(64, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_each_of_several_ranks_holds_buckets_or_a_shard(tmp_path):
    file = tmp_path / "ranks.py"
    file.write_text(RANKS)
    alone = run(file, "alone").peak
    ddp, fsdp = (run(file, kind, ranks=8) for kind in ("ddp", "fsdp"))
    assert (ddp.ended, fsdp.ended) == ("finished", "finished")
    # 8 weights of 1 MiB: DDP copies their gradients into buckets of the same size
    assert ddp.peak_requested_bytes == alone.requested_bytes + 8 * MIB
    assert ddp.peak.by_category["parameter"] == 8 * MIB
    assert fsdp.peak.by_category["parameter"] == fsdp.peak.by_category["optimizer_state"] == MIB
    assert "one of 8 ranks" in fsdp.warnings[0]


def test_a_value_that_backward_reads_is_told_of_backward(tmp_path, capfd):
    file = tmp_path / "reads.py"
    file.write_text(
        "import torch\nx = torch.rand(100, device='cuda', requires_grad=True)\n"
        "x[x > 2].sum().backward()\n"
    )
    found = run(file)
    assert "Exception ignored" not in capfd.readouterr().err
    assert any("inside backward" in warning for warning in found.warnings)


def test_only_a_pass_of_the_engine_over_real_tensors_is_a_backward_pass(tmp_path):
    """As Megatron's schedules call the engine, and as torch.compile traces a backward pass."""
    file = tmp_path / "engine.py"
    file.write_text(
        "import torch\nfrom torch._subclasses.fake_tensor import FakeTensorMode\n"
        "with FakeTensorMode():\n"
        "    x = torch.ones(4, device='cuda', requires_grad=True)\n"
        "    torch.autograd.grad(x.sum(), x)\n"
        "w = torch.ones(2**20, device='cuda', requires_grad=True)\n"
        "for _ in range(2):\n"
        "    torch.autograd.Variable._execution_engine.run_backward(\n"
        "        tensors=((w * w).sum(),), grad_tensors=(torch.ones((), device='cuda'),),\n"
        "        keep_graph=False, create_graph=False, inputs=(), allow_unreachable=True,\n"
        "        accumulate_grad=True)\n"
    )
    found = run(file)
    assert (found.steps, found.step_unit) == (2, "backward pass")
    assert {phase.phase for phase in found.phases} == {"forward", "backward"}


def test_an_operation_that_is_compiled_on_first_use_runs(tmp_path):
    file = tmp_path / "jitted.py"
    file.write_text(
        "import torch\nx = torch.empty(2**20, device='cuda')\n"
        "y = x.erfinv()\ntorch.nn.init.trunc_normal_(x)\n"
    )
    found = run(file)
    assert (found.ended, found.peak_requested_bytes) == ("finished", 8 * MIB)


def test_expandable_segments_grow_where_plain_ones_pile_up(tmp_path, monkeypatch):
    file = tmp_path / "grow.py"
    file.write_text(
        "import torch\nfor n in (21, 41, 61, 81):\n"
        "    torch.empty(n * 2**20, dtype=torch.uint8, device='cuda')\n"
    )
    plain = run(file)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "expandable_segments:True")
    expandable = run(file)
    assert plain.peak_requested_bytes == expandable.peak_requested_bytes
    assert plain.peak_reserved_bytes == (22 + 42 + 62 + 82) * MIB  # each rounded up to 2 MiB
    assert expandable.peak_reserved_bytes == 100 * MIB  # 81 in pages of 20 MiB


def test_a_snapshot_is_written_for_the_visualiser(script, tmp_path):
    file = tmp_path / "snapshot.pickle"
    run(script, steps=1, snapshot=file)
    with file.open("rb") as opened:
        assert {"segments", "device_traces"} <= set(pickle.load(opened))  # noqa: S301 - our own
    assert not list(tmp_path.glob(".*"))


def test_two_at_once_that_both_build_the_libraries_agree(script, tmp_path):
    code = (
        "import sys, json; from vrambudget.rehearse import rehearse;"
        "r = rehearse(sys.argv[1:], gpu='t4', quiet=True); print(r.peak_reserved_bytes, r.ended)"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "XDG_CACHE_HOME": str(tmp_path / "a cache"),  # with a blank, too
    }
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, PYTHON, str(script)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    first, second = (process.communicate()[0] for process in both)
    assert first == second
    assert first.endswith("finished\n")
    assert not list((tmp_path / "a cache" / "vrambudget" / "virtual_gpu").glob(".building-*"))


def test_an_interrupt_ends_a_script_that_a_shell_put_in_the_background(tmp_path):
    endless = tmp_path / "endless.py"
    endless.write_text(
        "import torch, time\ntorch.empty(9, device='cuda')\nprint('on', flush=True)\n"
        "time.sleep(600)\n"
    )
    code = (
        "import sys; from vrambudget.rehearse import rehearse; r = rehearse(sys.argv[1:], gpu='t4')"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", f"{code}; print(r.ended, r.exit_code)", PYTHON, str(endless)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout.readline() == "on\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=15)[0] == "interrupt 130\n"


def test_a_function_is_rehearsed_in_another_process(monkeypatch, tmp_path):
    (tmp_path / "my_training.py").write_text(
        "import torch\n\n\ndef train():\n    torch.zeros(100, device='cuda')\n\n\n"
        "if __name__ == '__main__':\n    raise SystemExit('only imported')\n"
    )
    monkeypatch.setenv("VRAMBUDGET_PYTHON", PYTHON)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # only the other process has it
    train = importlib.import_module("my_training").train
    result = rehearse(train, gpu="t4", quiet=True)
    assert (result.exit_code, result.peak_requested_bytes) == (0, 400)


def test_a_script_that_uses_no_gpu_is_told_so(tmp_path):
    file = tmp_path / "cpu.py"
    file.write_text("import torch\ntorch.zeros(3)\n")
    assert run(file).warnings == ("the script never used the GPU",)


def test_the_drivers_own_allocator_is_refused_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    file = tmp_path / "pools.py"
    file.write_text("import torch\ntorch.zeros(3, device='cuda')\n")
    result = run(file)
    assert (result.ended, result.exit_code, result.warnings) == ("failed", 1, ())
    assert "Rehearse without backend:cudaMallocAsync" in result.error


def test_a_whole_number_to_the_power_of_what_is_on_the_card_is_computed(tmp_path):
    file = tmp_path / "rotary.py"
    file.write_text(
        "import torch\n"
        "steps = torch.arange(0, 8, 2, dtype=torch.float32, device='cuda')\n"
        "assert (10_000 ** (steps / 8)).shape == (4,)\n"
        "assert (2 ** torch.arange(3).cuda()).tolist() == [1, 2, 4]\n"
    )
    assert run(file).exit_code == 0


def record_of(name):
    """Return what was measured of a job, where reads answer as a real card's do."""
    lines = (Path(__file__).parent / "records" / "reference.jsonl").read_text().splitlines()
    return next(record for record in map(json.loads, lines) if record["id"] == name)


@pytest.mark.parametrize(
    "name", ["nanogpt-shakespeare", "gpt2-adafactor", "tinyllama-lora", "gpt2-fp32-eager"]
)
def test_a_rehearsal_equals_the_record_of_its_versions_to_the_byte(name):
    record = record_of(name)
    found = rehearse_job(record, gpu=record["card"], events=False, python=PYTHON)
    versions = record["versions"]
    if {key: found.versions.get(key, versions[key]) for key in versions} != versions:
        pytest.skip(f"no record of {name} with {found.versions}")
    measured = record["measured"]
    assert {key: found.measured[key] for key in measured} == measured


def test_a_model_s_job_gives_a_report_and_out_of_memory_is_exit_code_one(monkeypatch, tmp_path):
    monkeypatch.setenv("VRAMBUDGET_PYTHON", PYTHON)
    out = tmp_path / "report.json"
    job = ("nanogpt-shakespeare-char", "--batch", "64", "--format", "json", "-o", str(out))
    assert main(["rehearse", "--gpu", "t4", *job]) == 0
    report = json.loads(out.read_text())
    assert (report["ended"], report["steps"], report["fits"]) == ("finished", 3, True)
    assert report["peak"]["by_category"]["parameter"] > 40 * MIB
    assert main(["rehearse", "--gpu", "700MiB", *job]) == 1
    report = json.loads(out.read_text())
    assert (report["ended"], report["fits"]) == ("out of memory", False)
    assert not report["out_of_memory"][-1]["handled"]
    assert "nanogpt.py" in report["out_of_memory"][-1]["stack"][-1]
    assert report["error"].startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate")


def test_events_add_up_to_what_the_allocator_says():
    job = {**record_of("nanogpt-shakespeare"), "steps": 2}
    found = rehearse_job(job, gpu="a100-80gb", python=PYTHON)
    live = highest = 0
    for event in found.events:
        live += event.bytes if event.action == "alloc" else 0
        live -= event.bytes if event.action == "free_requested" else 0
        highest = max(highest, live)
    assert highest == found.measured["peak_requested"]
    phases = list(dict.fromkeys(event.phase for event in found.events))
    assert phases[0] == "build"
    assert phases[1:4] == ["0:forward", "0:backward", "0:optimizer_step"]
    forward = [e for e in found.events if (e.phase, e.action) == ("0:forward", "alloc")]
    assert {"scaled_dot_product_attention", "linear"} <= {e.operation for e in forward}
    backward = [e for e in found.events if (e.phase, e.action) == ("0:backward", "alloc")]
    assert any(e.node == "NllLossBackward0" for e in backward)
