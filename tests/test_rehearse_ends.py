"""Where a script's Python starts, and how it ends: modules, input, children, threads, clocks."""

import subprocess
import sys

import pytest
from virtual import PYTHON, VIRTUAL_GPU, run

from vrambudget.rehearse import rehearse

pytestmark = VIRTUAL_GPU

USE = "import torch\nheld = torch.empty(1000, device='cuda')\n"


def peak(result):
    """Return how it ended, its exit code, and what it asked for at most."""
    return result.ended, result.exit_code, result.peak_requested_bytes


@pytest.mark.parametrize("words", [("-c", USE), ("-m", "package.train")], ids=["code", "module"])
def test_code_and_modules_are_rehearsed_as_scripts_are(tmp_path, monkeypatch, words):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(USE)
    monkeypatch.chdir(tmp_path)
    result = rehearse([PYTHON, *words], gpu="t4", quiet=True)
    assert peak(result) == ("finished", 0, 4000)
    assert result.python
    assert result.versions["torch"]


def test_a_script_reads_what_is_typed(tmp_path):
    script = tmp_path / "asks.py"
    script.write_text(USE + "import sys\nsys.exit(0 if input() == 'yes' else 3)\n")
    code = "import sys\nfrom vrambudget.rehearse import rehearse\n"
    code += "sys.exit(rehearse(sys.argv[1:], gpu='t4', quiet=True).exit_code)\n"
    words = [sys.executable, "-c", code, PYTHON, str(script)]
    assert subprocess.run(words, input="yes\n", text=True, check=False).returncode == 0
    assert subprocess.run(words, input="no\n", text=True, check=False).returncode == 3


CHILDREN = """
import subprocess, sys
from torch.utils.data import DataLoader
import torch

if __name__ == "__main__":
    rows = [torch.ones(3) for _ in range(8)]
    for batch in DataLoader(rows, 4, num_workers=2):
        batch = batch.cuda()
    child = "import torch; held = torch.empty(5000, device='cuda')"
    subprocess.run([sys.executable, "-c", child], check=True)
"""


def test_workers_leave_no_record_and_a_child_that_uses_the_card_is_told(tmp_path):
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    result = run(script)
    assert peak(result) == ("finished", 0, 20_000)  # the child's; the script itself took less
    assert sum("several processes used the GPU" in warning for warning in result.warnings) == 1


def test_a_forked_process_uses_the_gpu_where_its_parent_did_not(tmp_path):
    script = tmp_path / "forks.py"
    script.write_text(
        "import multiprocessing, torch\n"
        "def work():\n    held = torch.empty(7000, device='cuda')\n"
        "child = multiprocessing.get_context('fork').Process(target=work)\n"
        "child.start()\nchild.join()\nraise SystemExit(child.exitcode)\n"
    )
    assert peak(run(script)) == ("finished", 0, 28_000)


def test_an_exception_in_a_thread_ends_the_thread_alone(tmp_path):
    script = tmp_path / "threads.py"
    script.write_text(
        USE + "import threading\n"
        "worker = threading.Thread(target=lambda: torch.empty(1 << 38, device='cuda'))\n"
        "worker.start()\nworker.join()\n"
    )
    result = run(script)
    assert peak(result) == ("finished", 0, 4000)
    assert [event.requested_bytes for event in result.out_of_memory] == [4 << 38]


def test_each_card_of_data_parallel_has_its_part_of_the_batch(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    script = tmp_path / "parallel.py"
    script.write_text("""
import torch
model = torch.nn.DataParallel(torch.nn.Linear(256, 256).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    out = model(torch.randn(60, 256).cuda())
    assert tuple(out.shape) == (60, 256) and out.device.index == 0
    optimizer.zero_grad()
    out.sum().backward()
    optimizer.step()
""")
    result = run(script)
    assert (result.ended, result.steps) == ("finished", 2), result.error
    first, *others = (gpu.requested_bytes for gpu in result.gpus)
    replica = 4 * (256 * 256 + 256)
    assert len(others) == 2
    assert others[0] == others[1] > 2 * replica  # the replica and its gradient
    assert first > others[0]
