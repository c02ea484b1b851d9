"""A rehearsal's page: the timeline of what was seen, with the modules and lines of each moment."""

import json
import re
import runpy

import pytest
from test_rehearse_anywhere import MIB, record, rehearsal
from virtual import PYTHON, VIRTUAL_GPU

from vrambudget.cli import main
from vrambudget.rehearse.curve import curve_of
from vrambudget.rehearse.hook.vrambudget_hook.modules import ModulePaths
from vrambudget.rehearse.page import page
from vrambudget.rehearse.record import GpuPeak, RecordedOutOfMemory


def levels(curve):
    """Return each column's parts in MiB, without those that are zero."""
    names = curve.parts
    return [
        {name: size // MIB for name, size in zip(names, column.parts, strict=True) if size}
        for column in curve.columns
    ]


def test_each_column_is_a_moment_by_what_its_blocks_turn_out_to_be():
    curve = curve_of(record())
    assert levels(curve)[curve.peak] == {
        "weights": 10,
        "gradients": 10,
        "activations": 20,
        "temporaries": 5,
    }
    assert levels(curve)[-1] == {"weights": 10, "optimizer states": 20, "activations": 8}
    spans = [(span.step, span.phase) for span in curve.spans]
    assert spans == [
        (0, "forward"),
        (0, "backward"),
        (0, "optimizer_step"),
        (1, "forward"),
    ]


def with_segment(full):
    """Let a segment of 64 MiB hold the blocks."""
    columns = full["history"]
    for name, value in (("action", "segment_alloc"), ("address", 0), ("bytes", 64 * MIB)):
        columns[name] = (value, *columns[name])
    for name in ("stream", "stack"):
        columns[name] = (0, *columns[name])
    return full


def test_reserved_bytes_are_those_of_segments():
    columns = curve_of(with_segment(record())).columns
    assert {column.reserved_bytes for column in columns} == {64 * MIB}


def test_a_block_is_shown_in_its_module_and_a_parameter_by_its_name():
    full = record(names={"1": "h.*.c_fc.weight"})
    full["history"]["modules"] = ["", "", "h.*.mlp"]
    curve = curve_of(full)
    modules = {
        group.module
        for group, _ in ((curve.groups[g], n) for g, n in curve.columns[curve.peak].largest)
    }
    assert modules == {"h.*.c_fc.weight", "h.*.mlp", ""}


def test_steps_that_look_like_others_are_left_out():
    marks = [["forward", n, 0, {}, n - 1] for n in range(1, 10)]
    events = [("alloc", n, MIB, 0) for n in range(1, 10)]
    full = record(marks=marks, counts=[9, 0])
    for name, values in zip(
        ("action", "address", "bytes", "stack"), zip(*events, strict=True), strict=True
    ):
        full["history"][name] = values
    full["history"]["stream"] = [0] * 9
    drawn = {span.step + 1 for span in curve_of(full).spans}
    assert drawn == {1, 2, 3, 8}  # the peak is in the eighth


def test_a_history_without_events_has_no_curve():
    empty = record(marks=[], counts=[0, 0])
    empty["history"] = {name: [] for name in empty["history"]}
    assert curve_of(empty) is None


def test_the_page_has_the_verdict_the_picture_and_no_network():
    text = page(rehearsal(curve=curve_of(with_segment(record()))))
    assert ">FITS</h1>" in text
    assert "peak 0.04 GiB" in text
    assert "values are zero" in text
    assert not re.search(r"(?:src|href)=|url\(|@import|import\(|https?:", text)
    data = json.loads(re.search(r'id="curve">(.*?)</script>', text)[1])
    assert data["height"] == "asked for by tensors"
    assert data["columns"][data["peak"]][1] == 45 * MIB


def test_a_page_without_history_still_tells_the_totals():
    text = page(rehearsal(peak=None, phases=()))
    assert 'id="curve">null<' in text
    assert "other<b>0.04 GiB</b>" in text


def test_the_page_shows_where_memory_ran_out_and_each_card():
    event = RecordedOutOfMemory(
        MIB, 0, 45 * MIB, 60 * MIB, 2, ("/u/<t>.py:9 f  x = g()",), handled=False
    )
    gpus = (GpuPeak(0, 1, 2, 3 * MIB), GpuPeak(1, 1, 2, 4 * MIB))
    text = page(rehearsal(ended="out of memory", out_of_memory=(event,), gpus=gpus))
    assert ">DOES NOT FIT</h1>" in text
    assert "out of memory in step 2: asked for 1.00 MiB" in text
    assert "&lt;t&gt;.py:9 f  x = g()" in text
    assert "<td>cuda:1</td><td>4.00 MiB</td>" in text


def test_a_run_that_failed_by_itself_is_no_verdict_of_memory():
    text = page(rehearsal(ended="failed", error="ValueError: mine", exit_code=1))
    assert ">FAILED</h1>" in text
    assert "ValueError: mine" in text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["-o", "r.png"], "no rehearsal's report has the suffix '.png'"),
        (["-o", "r.html", "--format", "json"], "cannot be combined with the page"),
        (["-o", "r.html", "--batch-from", "1:4"], "without --snapshot or a page"),
    ],
)
def test_what_no_report_can_be_is_refused_before_anything_runs(options, told, capsys):
    assert main(["rehearse", "--gpu", "t4", *options, "--", "python", "none.py", "{batch}"]) == 2
    assert told in capsys.readouterr().err


@pytest.fixture
def frames_of(tmp_path):
    torch = pytest.importorskip("torch")
    file = tmp_path / "net.py"
    file.write_text(
        "import sys, torch\n"
        "class Inner(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.up, self.down = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)\n"
        "    def forward(self, x):\n"
        "        x = self.up(x)\n"
        "        return torch.relu(\n"
        "            self.down(x))\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.h = torch.nn.ModuleList(Inner() for _ in range(2))\n"
        "        self.head = torch.nn.Linear(2, 2)\n"
        "    def forward(self, x):\n"
        "        for layer in self.h:\n"
        "            x = layer(x)\n"
        "        return self.head(x)\n"
    )
    scope = runpy.run_path(str(file))
    linear = torch.nn.modules.linear.__file__
    inside = torch.nn.Linear.forward.__code__.co_firstlineno + 4
    net = scope["Net"]()
    known = ModulePaths()
    known.look(torch)

    def module(*lines, innermost=None):
        frames = [{"filename": str(file), "line": line} for line in lines]
        frames = [{"filename": "/u/train.py", "line": 3}, *frames]
        frames += [{"filename": linear, "line": inside}] if innermost else []
        return known.of(reversed(frames))

    yield module
    del net


@pytest.mark.parametrize(
    ("lines", "innermost", "expected"),
    [
        ((), False, ""),
        ((18,), True, "head"),
        ((17, 8), False, "h.*"),
        ((17, 7), True, "h.*.up"),
        ((17, 9), True, "h.*.down"),
    ],
)
def test_frames_lead_down_to_the_module_that_the_callers_line_names(
    frames_of, lines, innermost, expected
):
    assert frames_of(*lines, innermost=innermost) == expected


class TestVirtualGpu:
    """With a CUDA build of PyTorch."""

    pytestmark = VIRTUAL_GPU

    def test_the_page_of_a_script_names_its_modules(self, tmp_path, capsys):
        script = tmp_path / "train.py"
        script.write_text(
            "import torch\n"
            "net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()).cuda()\n"
            "opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
            "for _ in range(2):\n"
            "    net(torch.zeros(4096, 512, device='cuda')).sum().backward()\n"
            "    opt.step()\n"
        )
        out = tmp_path / "report.html"
        assert main(["rehearse", "--gpu", "t4", "-o", str(out), "--", PYTHON, str(script)]) == 0
        data = json.loads(re.search(r'id="curve">(.*?)</script>', out.read_text())[1])
        of_peak = {
            data["groups"][g][0]: data["groups"][g][2] for g, _ in data["columns"][data["peak"]][4]
        }
        assert of_peak["weights"] == "*.weight"
        assert of_peak["activations"] == "*"
        assert "wrote" in capsys.readouterr().err
