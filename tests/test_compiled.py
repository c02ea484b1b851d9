"""Jobs under torch.compile: PyTorch's own compiler on fake tensors, held against rehearsals."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import vrambudget
from vrambudget.budget import Budget
from vrambudget.cli import main
from vrambudget.compiled import config
from vrambudget.errors import NotModelledError

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "tests" / "records" / "compiled" / "compiled.jsonl"

SMALL = {
    "model_type": "nanogpt",
    "n_layer": 2,
    "n_head": 4,
    "n_embd": 256,
    "vocab_size": 4096,
}
JOB = {"batch": 8, "block": 256, "precision": "amp-bf16", "optimizer_impl": "fused", "clip": None}


@pytest.fixture(scope="module")
def small() -> Budget:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    if sys.platform != "linux":
        pytest.skip("PyTorch's compiler is followed on Linux")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own
        return vrambudget.estimate(SMALL, gpu="A100", compile=True, **JOB)


def test_a_compiled_training_takes_less_than_an_eager_one(small):
    eager = vrambudget.estimate(SMALL, gpu="A100", **JOB)
    assert small.peak.allocated_bytes < eager.peak.allocated_bytes
    assert small.parameters == eager.parameters
    assert small.breakdown["optimizer states"] == eager.breakdown["optimizer states"]


def test_parts_of_a_compiled_peak_add_up(small):
    assert sum(small.breakdown.values()) == small.peak.allocated_bytes
    assert small.breakdown["activations"] > 0
    assert small.job["attention_kernel"] == "flash"


def test_a_compiled_job_comes_back_to_its_weights_and_states(small):
    second, third = small.steps[1:]
    assert second.after_forward_bytes == third.after_forward_bytes
    assert second.after_backward_bytes == third.after_backward_bytes


def test_what_stood_in_for_a_card_is_taken_back(small):
    import torch  # noqa: PLC0415
    from torch._inductor.codecache import PyCodeCache  # noqa: PLC0415
    from torch._subclasses.fake_tensor import FakeTensor  # noqa: PLC0415

    assert small.peak.allocated_bytes
    named = (torch.cuda.get_device_properties, PyCodeCache.load_by_key_path)
    assert not any("vrambudget" in function.__module__ for function in named)
    assert "vrambudget" not in FakeTensor.__torch_dispatch__.__module__
    assert torch.autograd.is_multithreading_enabled()


def test_the_report_names_the_compiler(small):
    assert any("own compiler" in warning for warning in small.warnings)


def refused(**fields):
    with pytest.raises(NotModelledError) as caught:
        vrambudget.estimate("nanogpt", block=64, compile=True, **fields)
    return caught.value


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda _name: None)
    error = refused()
    assert "torch is not installed" in str(error)
    assert "pip install 'vrambudget[torch]'" in error.hint
    assert "rehearse" in error.hint


def test_another_version_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda _name: True)
    monkeypatch.setattr(config, "installed_version", lambda _package: "2.9.1")
    error = refused()
    assert "torch 2.9 is installed" in str(error)
    assert "2.11" in error.hint


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_another_system_is_refused_by_name(monkeypatch, platform):
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda _name: True)
    monkeypatch.setattr(config.sys, "platform", platform)
    error = refused()
    assert platform in str(error)
    assert "rehearse" in error.hint


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"loop": "lightning"}, "loop"), ({"mode": "forward"}, "mode")],
    ids=["Lightning", "a forward pass"],
)
def test_what_is_not_compiled_here_is_refused_by_name(monkeypatch, fields, named):
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda _name: True)
    monkeypatch.setattr(config, "installed_version", lambda _package: "2.11.0")
    assert named in str(refused(**fields))


def test_a_refused_job_ends_with_a_line_and_not_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda _name: None)
    assert main(["nanogpt", "--compile", "--block", "64"]) == 2
    assert capsys.readouterr().err.startswith("error: torch.compile is followed by PyTorch's own")


def test_nothing_of_the_compiler_is_loaded_without_it():
    code = "import vrambudget, sys; vrambudget.estimate('gpt2'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith("vrambudget.compiled")]


CHECK = """
import json, sys
from pathlib import Path
from vrambudget.config.record import read_records
from vrambudget.compiled import padding
from vrambudget.validate import validate
padding.fullest = lambda config, simulated: simulated(config)  # a virtual card's benchmark
for check in validate(read_records(Path(sys.argv[1]))):
    print(json.dumps([check.id, check.problem, {c: check.error(c) for c in check.predicted}]))
"""
BOUNDS = {"requested": 0.0, "allocated": 0.01, "reserved": 0.06}


@pytest.mark.virtual_gpu
def test_the_compiler_of_the_rehearsals_equals_them():
    python = os.environ.get("VRAMBUDGET_PYTHON")
    if not python:
        pytest.skip("VRAMBUDGET_PYTHON names no Python")
    command = [python, "-c", CHECK, str(RECORDS)]
    paths = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=paths)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(RECORDS.read_text(encoding="utf-8").splitlines())
    for job, problem, errors in found:
        assert problem is None, (job, problem)
        off = {name: errors[name] for name, bound in BOUNDS.items() if abs(errors[name]) > bound}
        assert not off, (job, off)
