"""The recorder's parts that need no CUDA build: getting in, counting, following values.

What changes a whole process (dispatch keys, imports) runs in one of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vrambudget.rehearse import hook
from vrambudget.rehearse.hook.vrambudget_hook.counting import Iterations
from vrambudget.rehearse.launchers import launched

HOOK = Path(hook.__file__).parent


def python(code, *arguments, **environment):
    """Run code that can import the hook; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(HOOK), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    """Stands for torch's: what counts is that it steps."""


def count(turns, *, idle=0):
    """Return the count after each step: letters are optimizers, a space is a backward pass."""
    iterations = Iterations()
    optimizers = {name: Optimizer() for name in sorted(set(turns) - {" "})}
    others = [Optimizer() for _ in range(idle)]
    for optimizer in (*optimizers.values(), *others):
        iterations.made(optimizer)
    counts = []
    for name in turns:
        if name == " ":
            iterations.after_backward()
        else:
            iterations.before_step(optimizers[name])
            iterations.after_step(optimizers[name])
        counts.append(iterations.done)
    return counts, iterations.unit


@pytest.mark.parametrize(
    ("turns", "counts", "unit"),
    [
        pytest.param(" A A A", [0, 1, 1, 2, 2, 3], "optimizer step", id="one optimizer"),
        pytest.param("  A  A", [0, 0, 1, 1, 1, 2], "optimizer step", id="accumulation"),
        pytest.param(" D G D G", [0, 0, 0, 1, 1, 1, 1, 2], "turn of 2 optimizers", id="GAN"),
        pytest.param("ABCABC", [0, 0, 1, 1, 1, 2], "turn of 3 optimizers", id="one a parameter"),
        pytest.param("DDDGDDDG", [0, 2, 3, 3, 4, 5, 6, 6], "turn of 2 optimizers", id="critic"),
        pytest.param("   ", [1, 2, 3], "backward pass", id="no optimizer"),
    ],
)
def test_an_iteration_is_a_turn_of_all_that_step(turns, counts, unit):
    assert count(turns) == (counts, unit)


def test_an_optimizer_that_never_steps_delays_the_first_turn_only():
    assert count("AAA", idle=1) == ([0, 2, 3], "optimizer step")


# ---- values -----------------------------------------------------------------------------------

# The meta device stands for the card: it has no values of its own either.
FOLLOW = """
import operator, sys, torch
from vrambudget_hook.following import Follower
follower = Follower(torch, lambda *_: None, operator.attrgetter("is_meta"))
follower.start()
values = follower.values

def known(tensor):
    value = values.of(tensor)
    return None if value is None else values.as_on_cpu(tensor, value.memory).tolist()

def is_true(tensor):
    return values.of(tensor).true

def sent(*numbers):
    return torch.tensor(numbers).to("meta")

def filled(*shape):
    return torch.empty(shape, device="meta").fill_(1)
"""


def follow(code):
    pytest.importorskip("torch")
    return python(FOLLOW + code)


VALUES = {
    "sent(1, 2, 3)": [1, 2, 3],
    "sent(1, 2, 3) + 1": [2, 3, 4],
    "2 - sent(1, 2)": [1, 0],
    "sent(5, 6) % 2": [1, 0],
    "sent(1, 0).bool().all()": False,
    "(sent(1, 5) > 2).sum()": 1,
    "sent(3, 1, 2).sort().values": [1, 2, 3],
    "sent(1, 2, 4).diff()": [1, 2],
    "sent(1, 2, 4).cumsum(0)[1:]": [3, 7],
    "torch.cat([sent(1), sent(2)])": [1, 2],
    "torch.where(sent(1, 0) == 1, 7, 8)": [7, 8],
    "sent(1, 2, 3, 4).view(2, 2).t()": [[1, 3], [2, 4]],
    "sent(1, 2, 3)[sent(2, 0)]": [3, 1],
    "sent(0, 1, 0).argmax()": 1,
    "sent(1, 0).to(torch.int32).data": [1, 0],
    "sent(1, 0, 0, 0).float().mean() * 4": 1.0,
    "torch.ones(2).to('meta')": None,  # floating point is not followed
    "filled(1, 2)": [[1.0, 1.0]],  # but for what may be a mask
    "(1 - filled(1, 2)).bool().any()": False,
    "torch.nn.Parameter(filled(1, 2))": [[1.0, 1.0]],
    "filled(2)": None,
    "filled(1, 65_537)": None,
    "torch.rand(3, device='meta').argmax()": None,
    "sent(1, 2).new_empty(2)": None,
}


@pytest.fixture(scope="module")
def values():
    """Return what all the expressions of VALUES are known to hold: one process is enough."""
    lines = (f"print({expression!r}, known({expression}), sep=': ')" for expression in VALUES)
    return dict(line.rsplit(": ", 1) for line in follow("\n".join(lines)).splitlines())


@pytest.mark.parametrize("expression", VALUES)
def test_integers_that_follow_from_the_host_have_their_values(expression, values):
    assert values[expression] == str(VALUES[expression])


def test_writes_are_followed_through_views_and_a_later_unknown_write_is_not_believed():
    out = follow("""
t = sent(1, 2, 3, 4)
t[2:] = sent(7, 8)
t[:2].add_(10)
t += 1
print(known(t), is_true(t))
t.data.copy_(torch.tensor([5, 5, 5, 5]))
print(known(t), is_true(t))
t[0] = torch.rand(3, device="meta").argmax()
print(is_true(t))
t.random_(0, 9)
print(known(t))
t.fill_(3)
print(known(t), is_true(t))
""")
    assert out.splitlines() == [
        "[12, 13, 8, 9] True",
        "[5, 5, 5, 5] True",
        "False",
        "None",
        "[3, 3, 3, 3] True",
    ]


def test_gradients_are_no_masks():
    out = follow("""
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + x
    @staticmethod
    def backward(ctx, gradient):
        print(known(filled(2, 2)))
        return gradient + gradient

x = torch.rand(2, 2, device="meta", requires_grad=True)
Twice.apply(x).sum().backward()
print(known(x.grad), known(filled(2, 2)))
""")
    assert out.splitlines() == ["None", "None [[1.0, 1.0], [1.0, 1.0]]"]


def test_a_gradient_that_was_looked_at_is_still_added_to_in_place():
    out = follow("""
x = torch.rand(3, 4, requires_grad=True)
h = x * 2
other = (h * h.detach()).sum()
part = h[torch.tensor([2, 0])]  # the later node: its gradient comes first
storages = []

def look(made, _):
    gradient, = made
    values.on_card = operator.attrgetter("is_cpu")  # the meta device adds nothing in place
    storages.append(values.storages.of(gradient))
    print(values.of(gradient), values.eligible(gradient), values.storages.is_whole(gradient))
    values.on_card = operator.attrgetter("is_meta")

part.grad_fn.register_hook(look)
h.register_hook(lambda both: storages.append(values.storages.of(both)))
(part.sum() + other).backward()
print(len(storages), len(set(storages)))
""")
    assert out == "None True True\n2 1\n"


def test_tensors_without_a_storage_are_left_alone():
    out = follow("""
sparse = torch.rand(3, 3).to_sparse()
print(values.storages.of(sparse), values.eligible(sparse), values.of(sparse))
""")
    assert out == "0 False None\n"


def test_what_is_mixed_with_unknown_integers_counts_them_as_zero_and_is_not_true():
    out = follow("""
unknown = torch.rand(3, 2, device="meta").argmax(0)
mixed = sent(4, 5) + unknown
print(known(mixed), is_true(mixed), known(unknown))
""")
    assert out == "[4, 5] False None\n"


def test_unknown_numbers_are_finite_and_valid_parameters_of_a_distribution():
    out = follow("""
unknown = torch.rand(3, device="meta")
print(known(torch.isfinite(unknown)), known(torch.isfinite(unknown).all()))
constraint = torch.distributions.constraints.positive
print(known(constraint.check(unknown)), known(constraint.check(sent(1, 0))))
check = torch.distributions.constraints.independent(constraint, 1).check
print(known(check(unknown[None])), is_true(check(unknown[None])))
""")
    assert out.splitlines() == [
        "[True, True, True] True",
        "[True, True, True] [True, False]",
        "[True] False",
    ]


def test_copies_to_unknown_memory_are_followed_where_that_is_asked_for():
    out = follow("""
there = torch.empty(2, dtype=torch.long, device="meta")
there.copy_(torch.tensor([1, 2]))
print(known(there))
with follower.copying():
    there.copy_(torch.tensor([1, 2]))
print(known(there))
""")
    assert out == "None\n[1, 2]\n"


def test_values_go_with_their_tensors_and_hold_none():
    out = follow("""
import gc, weakref
t = sent(1, 2, 3)
gone = weakref.ref(t)
u = t * 2
print(len(values.known))
del t
print(gone(), len(values.known))
del u
print(len(values.known))
""")
    assert out == "2\nNone 1\n0\n"


def test_operators_of_higher_order_run_below_our_keys():
    """A checkpoint that torch.compile recomputes restores random numbers by one of them."""
    out = follow("""
from torch._prims.rng_prims import run_with_rng_state
state = torch.get_rng_state()
drawn = torch.rand(2)
again = run_with_rng_state(state, torch.ops.aten.rand.default, [2], device="cpu")
print(torch.equal(drawn, again))
""")
    assert out == "True\n"


def test_threads_inference_mode_devices_vmap_and_compiled_functions_go_on_as_before():
    out = follow("""
import threading
thread = threading.Thread(target=lambda: print(known(sent(1))))
thread.start()
thread.join()
with torch.inference_mode():
    t = sent(1, 2)
    t += 1
    print(known(t))
t = sent(1, 2)
with torch.device("meta"):
    print(known(t * 2))
print(torch.vmap(lambda x: x + sent(1)[0])(sent(1, 2)).shape)
compiled = torch.compile(lambda x, n: (x * 2).sum() + (n + 1).sum(), backend="aot_eager")
print(compiled(torch.ones(3), torch.arange(3)))
""")
    assert out == "[1]\n[2, 3]\n[2, 4]\ntorch.Size([2])\ntensor(12.)\n"
