"""Rehearsed convolutions take cuDNN's way: its engines, with the workspaces that it names."""

import json

import pytest
from virtual import VIRTUAL_GPU, run

pytestmark = VIRTUAL_GPU

SCRIPT = """
import json, sys
import torch

def workspaces(x, benchmark=False):
    torch.backends.cudnn.benchmark = benchmark
    before = len(torch.cuda.memory._snapshot()["device_traces"][0])
    y = net(x)
    trace = torch.cuda.memory._snapshot()["device_traces"][0][before:]
    torch.backends.cudnn.benchmark = False
    return [e["size"] for e in trace if e["action"] == "alloc" and e["size"] != y.nbytes]

x = torch.zeros(32, 64, 56, 56, device="cuda", dtype=torch.float16)
net = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False, device="cuda", dtype=torch.float16)
found = {"heuristics": workspaces(x), "again": workspaces(x)}
found["benchmark"] = workspaces(x[1:], benchmark=True)
net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
found["channels last"] = workspaces(x)
json.dump(found, open(sys.argv[1], "w"))
"""

X = Y = 32 * 64 * 56 * 56 * 2
W = 64 * 64 * 3 * 3 * 2
IN_NHWC = X + Y + W + 16
"""What an engine for NHWC takes where PyTorch's tensors are not: each in that format, aligned."""


@pytest.mark.parametrize(
    ("gpu", "best"),
    [
        pytest.param("a100-80gb", [IN_NHWC], id="Ampere"),
        pytest.param("h100", [IN_NHWC + 131], id="Hopper"),
    ],
)
def test_a_convolution_takes_the_workspace_of_the_engine_that_cudnn_names(tmp_path, gpu, best):
    file, result = tmp_path / "conv.py", tmp_path / "found.json"
    file.write_text(SCRIPT)

    seen = run(file, str(result), gpu=gpu)

    assert seen.versions["cudnn"].startswith("9.")
    assert not seen.warnings
    found = json.loads(result.read_text())
    assert found["heuristics"] == found["again"] == best
    tried, *kept = found["benchmark"]  # room for the most that any engine takes, then one's own
    assert tried > best[0]
    assert len(kept) == 1
    assert sum(found["channels last"]) < 1024


UNKNOWN = """
import torch
from torch import nn
torch.backends.cudnn.benchmark = True
x = torch.zeros(8, 64, 28, 28, device="cuda").to(memory_format=torch.channels_last)
net = nn.Sequential(nn.Conv2d(64, 64, 3), nn.BatchNorm2d(64)).cuda()
with torch.autocast("cuda", dtype=torch.float16):
    net.to(memory_format=torch.channels_last)(x).sum().backward()
"""


def test_what_cudnn_tells_real_cards_only_is_named(tmp_path):
    file = tmp_path / "unknown.py"
    file.write_text(UNKNOWN)

    seen = run(file)

    assert [seen.ended, len(seen.warnings)] == ["finished", 2]
    assert "cudnn.benchmark" in seen.warnings[0]
    assert "batch norm" in seen.warnings[1]


def test_a_cudnn_that_does_not_know_the_card_is_left_alone(tmp_path):
    file = tmp_path / "old.py"
    file.write_text(
        "import os, torch\nos.environ['VRAMBUDGET_CUDNN_CARD'] = '{}'  # no card that it knows\n"
        "torch.nn.Conv2d(3, 8, 3).cuda()(torch.zeros(8, 3, 64, 64, device='cuda'))\n"
    )

    seen = run(file)

    assert (seen.ended, "cudnn" in seen.versions) == ("finished", False)
    assert "PyTorch's own kernels" in seen.warnings[0]
