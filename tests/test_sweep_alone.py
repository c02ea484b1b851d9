"""Sweeps where NumPy is not installed: the same records, point by point."""

import io
import sys

import pytest

import vrambudget
from vrambudget.cli import main
from vrambudget.errors import VramBudgetError
from vrambudget.planning import sweep_alone
from vrambudget.planning.processes import progress
from vrambudget.simulate import simulate

SMALL = {"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 50}
GRID = {"batch": [1, 3, 2], "block": [8, 16], "precision": ["fp32", "amp-bf16"]}


@pytest.fixture
def plain(monkeypatch):
    """Hide NumPy, as a plain install does not have it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "numpy"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("sweep_points", "shared_tape", "size_vector"):
        monkeypatch.delitem(sys.modules, f"vrambudget.planning.{name}", raising=False)
        monkeypatch.delattr(f"vrambudget.planning.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "numpy", None)


@pytest.mark.usefixtures("plain")
def test_a_sweep_needs_no_numpy():
    records = vrambudget.sweep(SMALL, gpu=["RTX 3060", "T4"], **GRID)
    assert len(records) == 24
    for record in records[::5]:
        keys = ("batch", "block", "precision")
        point = {key: record[key] for key in keys}
        budget = vrambudget.estimate(SMALL, gpu=record["gpu"], **point)
        assert record["peak_reserved_bytes"] == budget.peak.reserved_bytes
        assert record["fits"] is budget.fits


def test_compiled_jobs_are_swept_one_by_one(monkeypatch):
    """As they are compiled: at one size each; several jobs go to several processes."""

    def compiled(config, job, platform):
        assert {type(job.batch), type(job.block)} == {int}
        return simulate(config, job.model_copy(update={"compile": False}), platform)

    monkeypatch.setattr(sweep_alone, "simulate", compiled)
    peaks = [
        [record["peak_reserved_bytes"] for record in vrambudget.sweep(SMALL, **fields, **GRID)]
        for fields in ({"compile": True, "torch": "2.11"}, {"use_cache": False, "torch": "2.11"})
    ]
    assert peaks[0] == peaks[1]


def test_the_records_are_those_with_numpy(request):
    pytest.importorskip("numpy")
    with_numpy = vrambudget.sweep(SMALL, gpu=["RTX 3060", "T4"], **GRID)
    request.getfixturevalue("plain")
    assert vrambudget.sweep(SMALL, gpu=["RTX 3060", "T4"], **GRID) == with_numpy


@pytest.mark.usefixtures("plain")
def test_requested_bytes_alone_are_numpy_s(capsys):
    with pytest.raises(VramBudgetError, match="needs NumPy"):
        vrambudget.sweep(SMALL, by="requested", **GRID)
    assert main(["sweep", "gpt2", "--batch", "1,2", "--block", "8", "--by", "requested"]) == 2
    assert "--by" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_percentage_on_a_terminal_without_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress(4, "points") as done:
        done(1)
        done(2)
        assert "3 of 4 points: 75 %" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().endswith("\x1b[K")


def test_a_sweep_over_lengths_that_change_is_what_each_estimate_says():
    job = {"shortest": 16, "steps": 4, "precision": "bf16"}
    records = vrambudget.sweep("gpt2", batch=[1, 2], block=[64, 128], **job)
    for record in records:
        alone = vrambudget.estimate("gpt2", batch=record["batch"], block=record["block"], **job)
        assert record["peak_reserved_bytes"] == alone.peak.reserved_bytes
    assert [(r["batch"], r["block"]) for r in records] == [(1, 64), (1, 128), (2, 64), (2, 128)]
    with pytest.raises(VramBudgetError, match="is a length, or several") as caught:
        vrambudget.sweep("gpt2", block="16:64")
    assert caught.value.hint == "lengths that change: block=64, shortest=16"


def test_several_gpus_alike_are_ranks_and_of_one_number():
    found = vrambudget.sweep("gpt2", batch=[1, 2], block=64, gpu="4xh100", parallel="ddp")
    assert [record["ranks"] for record in found] == [4, 4]
    with pytest.raises(VramBudgetError, match="gpu has 2 and 4 GPUs in one sweep"):
        vrambudget.sweep("gpt2", gpu=["2xh100", "4xa100-80gb"], parallel="ddp")
