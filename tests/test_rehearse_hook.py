"""The recorder's parts that need no CUDA build: getting in, launchers, counting.

What changes a whole process (dispatch keys, imports) runs in one of its own.
"""

import json
import multiprocessing.process

import pytest
from hooked import HOOK, python

from vrambudget.rehearse.hook.vrambudget_hook import frames as frames_of_hook
from vrambudget.rehearse.hook.vrambudget_hook.counting import Iterations
from vrambudget.rehearse.launchers import launched

# ---- getting in -------------------------------------------------------------------------------

ENTER = """
import importlib.util, sys
sys.path.insert(0, sys.argv[1])
from vrambudget_hook.entering import ModuleFinder
sys.meta_path.insert(0, ModuleFinder("torch", lambda module: print("then", module.done)))
for look in range(2):
    assert importlib.util.find_spec("torch").origin.startswith(sys.argv[1])
try:
    import torch
except RuntimeError:
    print("failed once")
import torch
import json, torch.part
print([type(finder).__name__ for finder in sys.meta_path].count("ModuleFinder"))
"""


def test_torch_is_watched_even_if_it_was_looked_for_or_failed_before_it_was_imported(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "import sys\nif not hasattr(sys, 'again'):\n    sys.again = True\n"
        "    raise RuntimeError('the first time')\ndone = True\n"
    )
    (tmp_path / "torch" / "part.py").write_text("")
    assert python(ENTER, str(tmp_path)).split("\n")[:-1] == ["failed once", "then True", "0"]


# ---- launchers --------------------------------------------------------------------------------

LAUNCH = f"""
import runpy, sys
sys.path.insert(0, {str(HOOK)!r})
runpy.run_module("vrambudget_hook.launch", run_name="__main__", alter_sys=True)
"""
SHOW = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "VRAMBUDGET_DEVICES", "ACCELERATE_MIXED_PRECISION")
print(sys.argv[1:], *(os.environ.get(name) for name in names))
print(json.loads(os.environ["VRAMBUDGET_REHEARSAL"])["ranks"])
"""


def launch(tmp_path, *words, ranks=None, rank=0, code=LAUNCH):
    """Return what a script sees of the launcher's arguments and environment."""
    (tmp_path / "show.py").write_text(SHOW)
    plan = json.dumps({"ranks": ranks, "rank": rank})
    words = [str(tmp_path / word) if word == "show.py" else word for word in words]
    return python(code, *words, PYTHONPATH="", VRAMBUDGET_REHEARSAL=plan).splitlines()


@pytest.mark.parametrize(
    ("words", "options", "seen"),
    [
        (["--nproc-per-node", "4"], {}, "0 0 4 4"),
        (["--standalone", "--nproc_per_node=2", "--nnodes=3"], {"rank": 5}, "5 1 6 2"),
        (["--nproc-per-node=gpu"], {"ranks": 8}, "0 0 8 8"),
    ],
)
def test_torchrun_s_own_parser_says_how_many_ranks_there_are(tmp_path, words, options, seen):
    pytest.importorskip("torch")
    out = launch(tmp_path, "torchrun", *words, "show.py", "--lr", "1", **options)
    assert out == [f"['--lr', '1'] {seen} None", seen.split()[2]]


def test_torch_distributed_launch_tells_the_local_rank_by_an_argument(tmp_path):
    pytest.importorskip("torch")
    words = ["launch", "--nproc_per_node=2", "show.py", "x"]
    assert launch(tmp_path, *words, rank=1)[0] == "['--local-rank=1', 'x'] 1 1 2 2 None"
    words.insert(1, "--use_env")
    assert launch(tmp_path, *words, rank=1)[0] == "['x'] 1 1 2 2 None"


# The part of deepspeed/launcher/runner.py that is asked.
RUNNER = """
import argparse

def parse_args(words):
    parser = argparse.ArgumentParser()
    for name in ("hostfile", "include", "exclude"):
        parser.add_argument("--" + name, default="")
    for name in ("num_nodes", "num_gpus"):
        parser.add_argument("--" + name, type=int, default=-1)
    for name in ("module", "no_python", "no_local_rank"):
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("user_script")
    parser.add_argument("user_args", nargs=argparse.REMAINDER)
    return parser.parse_args(words)

def fetch_hostfile(path):
    return {"a": 8, "b": 8} if path else None

def parse_inclusion_exclusion(machines, include, exclude):
    slots = include.rpartition(":")[2].split(",") if include else None
    return {name: slots or list(range(count)) for name, count in machines.items()}
"""


@pytest.mark.parametrize(
    ("words", "options", "seen"),
    [
        (["--num_gpus=4"], {"rank": 3}, "['--local_rank=3', 'x'] 3 3 4 4 None"),
        ([], {"ranks": 8}, "['--local_rank=0', 'x'] 0 0 8 8 None"),
        ([], {}, "['--local_rank=0', 'x'] 0 0 1 1 None"),
        (["--include", "localhost:1,2", "--no_local_rank"], {}, "['x'] 0 0 2 2 None"),
        (["--hostfile=h"], {"rank": 9}, "['--local_rank=1', 'x'] 9 1 16 8 None"),
    ],
)
def test_deepspeed_counts_its_machines_and_tells_the_local_rank(tmp_path, words, options, seen):
    folder = tmp_path / "deepspeed" / "launcher"
    folder.mkdir(parents=True)
    (folder / "runner.py").write_text(RUNNER)
    sys_path = LAUNCH.replace(
        "import runpy, sys", f"import runpy, sys\nsys.path.insert(0, {str(tmp_path)!r})"
    )
    assert (
        launch(tmp_path, "deepspeed", *words, "show.py", "x", code=sys_path, **options)[0] == seen
    )


def test_accelerate_s_settings_go_to_the_script(tmp_path):
    pytest.importorskip("accelerate")
    words = ["--num_processes", "2", "--multi_gpu", "--mixed_precision", "bf16", "show.py", "x"]
    assert launch(tmp_path, "accelerate", *words)[-2:] == ["['x'] 0 0 2 2 bf16", "2"]


@pytest.mark.parametrize(
    ("command", "started", "ranks"),
    [
        (["python", "t.py"], ["python", "t.py"], None),
        (["/bin/torchrun", "t.py"], ["torchrun", "t.py"], 2),
        (["python", "-m", "torch.distributed.run", "t.py"], ["torchrun", "t.py"], 2),
        (["python", "-u", "-m", "torch.distributed.launch", "t.py"], ["launch", "t.py"], 2),
        (["deepspeed", "t.py", "--deepspeed"], ["deepspeed", "t.py", "--deepspeed"], 2),
        (["accelerate", "launch", "t.py"], ["accelerate", "t.py"], 2),
        (["python", "-m", "accelerate.commands.launch", "t.py"], ["accelerate", "t.py"], 2),
        (["accelerate", "env"], ["accelerate", "env"], None),
    ],
)
def test_launchers_are_found_and_count_the_visible_cards(command, started, ranks):
    words, found = launched(command, "/py", None, {"CUDA_VISIBLE_DEVICES": "0,1"})
    ours = ("/py", "-m", "vrambudget_hook.launch")
    assert words == (tuple(started) if ranks is None else (*ours, *started))
    assert found == ranks


# ---- counting ---------------------------------------------------------------------------------


class Optimizer:
    """Stands for torch's: what counts is that it steps, with parameters in which groups."""

    param_groups = ({"params": [0]}, {"params": [1]})


PART = ({"params": [0]}, {"params": []})


def count(turns, *, idle=0):
    """Return the count after each step: letters are optimizers, small ones step one group.

    A space is a backward pass.
    """
    iterations = Iterations()
    optimizers = {name: Optimizer() for name in sorted(set(turns.upper()) - {" "})}
    others = [Optimizer() for _ in range(idle)]
    for optimizer in (*optimizers.values(), *others):
        iterations.made(optimizer)
    counts = []
    for name in turns:
        if name == " ":
            iterations.before_backward()
            iterations.after_backward()
        else:
            optimizer = optimizers[name.upper()]
            optimizer.param_groups = PART if name.islower() else Optimizer.param_groups
            iterations.before_step(optimizer)
            iterations.after_step(optimizer)
        counts.append(iterations.done)
    return counts, iterations.unit


@pytest.mark.parametrize(
    ("turns", "counts", "unit"),
    [
        pytest.param(" A A A", [0, 1, 1, 2, 2, 3], "optimizer step", id="one optimizer"),
        pytest.param("  A  A", [0, 0, 1, 1, 1, 2], "optimizer step", id="accumulation"),
        pytest.param(" D G D G", [0, 0, 0, 1, 1, 1, 1, 2], "step of 2 optimizers", id="GAN"),
        pytest.param("ABCABC", [0, 0, 1, 1, 1, 2], "step of 3 optimizers", id="one a parameter"),
        pytest.param("DDDGDDDG", [0, 2, 3, 3, 4, 5, 6, 6], "step of 2 optimizers", id="critic"),
        pytest.param(" aa aa a", [0, 0, 0, 1, 1, 2, 2, 2], "optimizer step", id="DeepSpeed"),
        pytest.param("   ", [1, 2, 3], "backward pass", id="no optimizer"),
    ],
)
def test_an_iteration_is_a_turn_of_all_that_step(turns, counts, unit):
    assert count(turns) == (counts, unit)


def test_an_optimizer_that_never_steps_delays_the_first_turn_only():
    assert count("AAA", idle=1) == ([0, 2, 3], "optimizer step")


def test_a_line_of_pythons_own_library_is_not_taken_for_the_users():
    def made_in(*files):
        frames = [{"filename": each, "line": 1, "name": "run"} for each in files]
        event = {"action": "alloc", "addr": 0, "size": 512, "stream": 0, "frames": frames}
        return frames_of_hook.history([event], lambda _: "", cplusplus=False)["stacks"][0][2]

    library, site = multiprocessing.process.__file__, "/opt/lib/python3/dist-packages/a/linear.py"
    spawned = "/lib/multiprocessing/spawn.py", "<string>"
    assert made_in(site, library) == made_in(site, library, *spawned) == ((site, 1, "run"),)
    assert made_in(site, library, "/home/me/train.py")[1] == ("/home/me/train.py", 1, "run")
