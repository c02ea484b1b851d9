"""What scripts see on a virtual card, what is counted of them, and how they end."""

import signal

import pytest
from virtual import PYTHON, VIRTUAL_GPU, run

from vrambudget.rehearse import rehearse

pytestmark = VIRTUAL_GPU


@pytest.fixture
def rehearsed(tmp_path):
    """Return a rehearsal of code; what it prints with `say` comes back as `said`."""

    def call(code, **options):
        said = tmp_path / "said"
        file = tmp_path / "script.py"
        file.write_text(
            f"def say(*words):\n    with open({str(said)!r}, 'a') as file:\n"
            "        print(*words, file=file)\n" + code
        )
        result = run(file, **options)
        return result, said.read_text().splitlines() if said.exists() else []

    return call


VALUES = """
import torch
mask = torch.ones(2, 8, dtype=torch.long).cuda()
say(bool(mask.all()), mask.sum().item(), mask[0].tolist())
mask[:, -2:] = 0
say(bool(mask.all()), mask.cpu().sum().item(), int(mask.argmin(1)[0]))
x = torch.randn(2, 8, 4, device="cuda", requires_grad=True)
rows = x[mask.bool()]
rows.sum().backward()
say(rows.shape, x.grad.shape, mask.nonzero().shape)
say(torch.masked_select(x, mask[..., None] == 1).shape)
say(torch.repeat_interleave(torch.tensor([1, 2]).cuda(), torch.tensor([2, 3]).cuda()).tolist())
say(mask.unique().tolist(), mask.bool().unique().tolist())
say(torch.equal(mask, mask.clone()), mask.numpy(force=True).sum())
say(mask.type(), mask.new_tensor(3).item())
counter = torch.zeros((), dtype=torch.long).cuda()
counter.add_(1)
counter += 2
say(counter.item(), counter.add_(True).item(), counter.add_(2, alpha=3).item())
"""


def test_what_the_host_wrote_and_what_follows_from_it_is_read_back(rehearsed):
    result, said = rehearsed(VALUES)
    assert result.ended == "finished", result.error
    assert said == [
        "True 16 [1, 1, 1, 1, 1, 1, 1, 1]",
        "False 12 6",
        "torch.Size([12, 4]) torch.Size([2, 8, 4]) torch.Size([12, 2])",
        "torch.Size([48])",
        "[1, 1, 2, 2, 2]",
        "[0, 1] [False, True]",
        "True 12",
        "torch.cuda.LongTensor 3",
        "3 4 10",
    ]
    assert not result.warnings  # nothing unknown was read


GENERATE = """
import transformers
config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=64, vocab_size=100, eos_token_id=99)
model = transformers.GPT2LMHeadModel(config).cuda()
import torch
ids = torch.ones(2, 5, dtype=torch.long).cuda()
forwards = []
model.register_forward_hook(lambda *_: forwards.append(1))
out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, pad_token_id=0)
say(out.shape, len(forwards))
"""


def test_generation_ends_after_its_tokens_and_torch_is_seen_behind_transformers_look(rehearsed):
    pytest.importorskip("transformers")
    result, said = rehearsed(GENERATE, timeout=120)
    assert (result.ended, said) == ("finished", ["torch.Size([2, 13]) 8"])
    assert result.peak_requested_bytes > 0


GAN = """
import torch
d, g = (torch.nn.Linear(64, 64).cuda() for _ in range(2))
steps = [torch.optim.Adam(model.parameters()) for model in (d, g)]
for _ in range(5):
    fake = g(torch.randn(8, 64, device="cuda"))
    for inputs, optimizer in ((fake.detach(), steps[0]), (fake, steps[1])):
        d(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    say("turn")
"""


def test_two_optimizers_of_one_turn_are_one_step(rehearsed):
    result, said = rehearsed(GAN, steps=2)
    assert (result.ended, result.steps, result.step_unit) == ("steps", 2, "step of 2 optimizers")
    assert said == ["turn"]  # the second ended with its last optimizer
    assert {phase.step for phase in result.phases} <= {1, 2, 3}
    assert result.peak.step >= 1


BY_HAND = """
import torch
model = torch.nn.Linear(64, 64).cuda()
for _ in range(5):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
        p.grad = None
    say("turn")
"""


def test_a_loop_without_an_optimizer_is_counted_by_its_backward_passes(rehearsed):
    result, said = rehearsed(BY_HAND, steps=3)
    assert (result.ended, result.steps, result.step_unit) == ("steps", 3, "backward pass")
    assert said == ["turn"] * 3


USE = "import ctypes, os, signal, time, torch\ntorch.empty(1000, device='cuda')\n"


@pytest.mark.parametrize(
    ("last", "ended", "code"),
    [
        pytest.param("os._exit(0)", "finished", 0, id="os._exit"),
        pytest.param("os._exit(3)", "failed", 3, id="os._exit with an error"),
        pytest.param("os.kill(os.getpid(), signal.SIGTERM)", "killed", 143, id="SIGTERM"),
        pytest.param("ctypes.string_at(8)", "killed", 128 + signal.SIGSEGV, id="SIGSEGV"),
        pytest.param("os.abort()", "killed", 128 + signal.SIGABRT, id="SIGABRT"),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", "killed", 137, id="SIGKILL"),
    ],
)
def test_every_end_leaves_a_record(rehearsed, last, ended, code):
    result, _ = rehearsed(USE + last)
    assert (result.ended, result.exit_code) == (ended, code)
    assert result.versions or code == 137
    assert result.peak_requested_bytes == 4000 or code == 137
    assert result.peak_reserved_bytes == 2 << 20  # also of one that was killed


def test_an_exception_that_cannot_say_what_it_is_is_the_scripts_own(rehearsed):
    code = "class Mute(Exception):\n    def __str__(self):\n        raise RuntimeError\n"
    result, _ = rehearsed(USE + code + "raise Mute")
    assert (result.ended, result.exit_code, result.peak_requested_bytes) == ("failed", 1, 4000)
    assert result.error == "Mute: (its text cannot be shown)"


def test_an_exception_whose_class_cannot_be_asked_is_recorded(rehearsed):
    code = "class Shy(type):\n    def __getattribute__(self, name):\n        raise RuntimeError\n"
    result, _ = rehearsed(USE + code + "class Mute(Exception, metaclass=Shy): pass\nraise Mute")
    assert (result.exit_code, result.peak_requested_bytes) == (1, 4000)
    assert result.error == "Mute: "


@pytest.mark.parametrize(("program", "ended"), [("true", "finished"), ("false", "failed")])
def test_a_process_that_becomes_another_program_was_not_killed(rehearsed, program, ended):
    result, _ = rehearsed(USE + f"os.execvp('{program}', ['{program}'])")
    assert (result.ended, result.peak_reserved_bytes) == (ended, 2 << 20)
    assert any("left no record" in warning for warning in result.warnings)


def test_a_script_that_takes_all_modules_away_ends_without_a_traceback(tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text("import torch, sys\nx = torch.empty(9, device='cuda')\nsys.modules.clear()\n")
    result = rehearse([PYTHON, str(script)], gpu="t4")
    assert (result.ended, result.exit_code) == ("finished", 0)
    assert any("left no record" in warning for warning in result.warnings)
    assert "Traceback" not in capfd.readouterr().err


def test_a_record_that_cannot_be_written_is_said(rehearsed):
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    result, _ = rehearsed(USE + full)
    assert result.ended == "finished"
    assert any("left no record" in warning for warning in result.warnings)


def test_a_record_for_which_memory_is_short_is_said_by_the_error(tmp_path, capfd):
    short = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (0, 0))\n"
    (script := tmp_path / "script.py").write_text(USE + short)
    assert rehearse([PYTHON, str(script)], gpu="t4").ended == "finished"
    assert "the record cannot be written: MemoryError" in capfd.readouterr().err


DEAF = """
for number in range(1, signal.NSIG):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    try:
        time.sleep(1)
    except BaseException:
        pass
"""


DEAF_TO_ONE = "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\nwhile True:\n    time.sleep(0.1)\n"


ENDLESS = """
class Endless(Exception):
    def __str__(self):
        while True:
            try:
                time.sleep(1)
            except BaseException:
                pass
raise Endless
"""


STOPPED = "os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.mark.parametrize("last", [STOPPED, DEAF, DEAF_TO_ONE, ENDLESS])
def test_a_script_that_is_stopped_or_deaf_is_ended_with_its_record(rehearsed, monkeypatch, last):
    monkeypatch.setattr("vrambudget.rehearse.process.GRACE_SECONDS", 20.0)
    result, _ = rehearsed(USE + last, timeout=10)
    assert (result.ended, result.peak_requested_bytes) == ("timeout", 4000)
    assert result.versions
    assert not any("killed" in warning for warning in result.warnings)


def test_an_exit_handler_is_stopped_without_a_traceback(tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text(USE + "import atexit\natexit.register(time.sleep, 100)")
    result = rehearse([PYTHON, str(script)], gpu="t4", timeout=10)
    assert (result.ended, result.peak_requested_bytes) == ("timeout", 4000)
    assert "Stopped" not in capfd.readouterr().err


def test_a_main_thread_that_is_stuck_in_c_leaves_its_record_when_time_is_up(rehearsed, monkeypatch):
    monkeypatch.setattr("vrambudget.rehearse.process.GRACE_SECONDS", 20.0)
    stuck = "ctypes.CDLL(None).pthread_mutex_lock(m)\n"
    code = USE + "m = ctypes.create_string_buffer(64)\n" + stuck * 2
    result, _ = rehearsed(code, timeout=20)
    assert (result.ended, result.peak_requested_bytes) == ("timeout", 4000)


def test_a_process_that_uses_the_card_unseen_is_an_error(rehearsed):
    code = (
        "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'vrambudget' not in str(f)]\n"
        "import torch\ntorch.empty(1000, device='cuda')\n"
    )
    result, _ = rehearsed(code)
    assert (result.ended, result.exit_code) == ("unrecorded", 2)
    assert "used the GPU" in result.error


RANK = """
import os, sys, torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
if "env" in sys.argv:
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="29511")
if "group" in sys.argv:
    dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size() if dist.is_initialized() else 4,))
local = int(os.environ.get("LOCAL_RANK", 0))
torch.cuda.set_device(local)
x = torch.ones(1000, device="cuda")
dist.all_reduce(x)
say(dist.get_rank(), dist.get_world_size(), torch.cuda.device_count(), torch.cuda.current_device())
"""


@pytest.mark.parametrize(
    ("words", "options", "seen"),
    [
        pytest.param(["env", "group"], {}, "0 1 1 0", id="NCCL alone"),
        pytest.param([], {"ranks": 4}, "0 4 4 0", id="a mesh without a group"),
        pytest.param(["group"], {"ranks": 4, "rank": 3}, "3 4 4 3", id="another rank"),
        pytest.param(["torchrun", "group"], {}, "0 2 2 0", id="torchrun"),
    ],
)
def test_each_group_is_fake_and_each_card_is_seen(tmp_path, words, options, seen):
    said, file = tmp_path / "said", tmp_path / "rank.py"
    file.write_text(f"say = lambda *w: print(*w, file=open({str(said)!r}, 'a'))\n" + RANK)
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=2") * ("torchrun" in words)
    command = [PYTHON, *torchrun, str(file), *words]
    result = rehearse(command, gpu="t4", quiet=True, timeout=120, **options)
    assert (result.ended, said.read_text().strip()) == ("finished", seen)
    assert result.peak_requested_bytes >= 4000


COLLECTIVES = """
import torch
from torch import distributed as dist
dist.init_process_group("nccl")
ranks = dist.get_world_size()
torch.cuda.set_device(dist.get_rank())
known = torch.tensor([3, 5], device="cuda")
total, most = known.clone(), known.clone()
dist.all_reduce(total)
dist.all_reduce(most, op=dist.ReduceOp.MAX)
parts = [torch.empty_like(known) for _ in range(ranks)]
dist.all_gather(parts, known)
whole = torch.empty(2 * ranks, dtype=torch.long, device="cuda")
dist.all_gather_into_tensor(whole, known)
for_me = torch.empty(ranks, dtype=torch.long, device="cuda")
dist.all_to_all_single(for_me, torch.arange(ranks, device="cuda"))
objects = [None] * ranks
dist.all_gather_object(objects, {"rows": 7})
loss = torch.ones(2, 2, device="cuda").mean()
dist.all_reduce(loss)
say(total.tolist(), most.tolist(), parts[1].tolist(), whole.tolist(), for_me.tolist(), objects)
torch.ones(int(whole.sum()), device="cuda")
"""


SHARDED = """
import torch, torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel
dist.init_process_group("nccl")
model = torch.nn.Linear(64, 64, device="cuda")
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(2):
    model(torch.ones(2, 64, device="cuda")).sum().backward()
    optimizer.step()
say([optimizer.state[p]["step"].item() for p in model.parameters()])
mesh = init_device_mesh("cuda", (2,))
logits = distribute_tensor(torch.randn(8, 64, device="cuda"), mesh, [Shard(1)]).requires_grad_()
with loss_parallel():
    F.cross_entropy(logits, torch.arange(8, device="cuda")).backward()
say(logits.grad.to_local().shape)
"""


def test_known_counters_and_labels_go_beside_dtensors(rehearsed):
    result, said = rehearsed(SHARDED, ranks=2)
    assert result.ended == "finished", result.error
    assert said == ["[2.0, 2.0]", "torch.Size([8, 32])"]


def test_other_ranks_send_what_this_one_does(rehearsed):
    result, said = rehearsed(COLLECTIVES, ranks=2, rank=1)
    rows = [[6, 10], [3, 5], [3, 5], [3, 5, 3, 5], [1, 1], [{"rows": 7}, {"rows": 7}]]
    assert said == [" ".join(map(str, rows))]
    assert result.peak is not None
    assert any("assumed to send what this one does" in w for w in result.warnings)


def test_printing_a_tensor_is_a_read_and_makes_no_shape_of_the_script(rehearsed):
    result, _ = rehearsed("import torch\nsay(torch.randn(3, device='cuda'))\n")
    assert [w for w in result.warnings if "values read" in w]
    assert not [w for w in result.warnings if "makes a shape" in w]


SYNCHRONISED = """
import torch
torch.distributed.init_process_group("nccl")
layer = torch.nn.SyncBatchNorm(4).cuda()
layer(torch.randn(3, 4, 2, device="cuda", requires_grad=True)).sum().backward()
say(*layer.weight.grad.shape)
"""


def test_batch_norm_keeps_the_statistics_of_all_ranks(rehearsed):
    result, said = rehearsed(SYNCHRONISED, ranks=2)
    assert (result.ended, said) == ("finished", ["4"]), result.error
    assert not [w for w in result.warnings if "makes a shape" in w]


def test_a_distribution_whose_parameters_are_unknown_can_be_sampled(rehearsed):
    code = "import torch\nstd = torch.rand(3, 5, device='cuda').exp()\n"
    code += "say(tuple(torch.distributions.Normal(std, std).sample().shape))\n"
    result, said = rehearsed(code)
    assert (result.ended, said) == ("finished", ["(3, 5)"])


def test_each_of_several_cards_in_one_process_has_its_own_peaks(rehearsed, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    code = """
import torch
first = torch.empty(1 << 20, dtype=torch.uint8, device="cuda:0")
layer = torch.nn.Linear(1024, 1024, bias=False).to("cuda:1")
layer(torch.randn(8, 1024, device="cuda:1")).sum().backward()
say(torch.cuda.device_count(), *(torch.cuda.max_memory_reserved(n) for n in range(2)))
"""
    result, (said,) = rehearsed(code)
    assert said.split() == ["2", *(str(gpu.reserved_bytes) for gpu in result.gpus)]
    assert [gpu.gpu for gpu in result.gpus] == [0, 1]
    fullest = result.gpus[1]
    assert result.peak_reserved_bytes == fullest.reserved_bytes
    assert result.peak.requested_bytes == fullest.requested_bytes > (8 << 20)
    assert "backward" in {phase.phase for phase in result.phases}


def test_unknown_numbers_are_finite_and_all_of_them_are_selected(rehearsed):
    code = """
import torch
x = torch.rand(4, 5, device="cuda")
say(len(x[~torch.isnan(x)]), len(x[torch.isfinite(x)]), len(x[x.isinf() | x.isnan()]))
say(torch.min(x[~torch.isnan(x)]).item(), bool(x.isnan().any()))
"""
    result, said = rehearsed(code)
    assert (result.ended, said) == ("finished", ["20 20 0", "0.0 False"])


def test_what_unknown_numbers_are_taken_to_be_is_read_and_changes_no_peak(rehearsed):
    code = """
import torch
scores = torch.rand(3, 5, device="cuda", requires_grad=True)
loss = scores.sum()
loss.backward()
say(loss.item(), scores[0].tolist(), scores.detach().cpu()[0, 0].item(), bool(loss < 0.5))
scaler = torch.amp.GradScaler("cuda")
optimizer = torch.optim.SGD([scores], 0.1)
scaler.scale(scores.sum()).backward()
scaler.step(optimizer)
say(scores._version)  # the scaler found all gradients finite
"""
    found = {kind: rehearsed(code, values=kind) for kind in ("zeros", "ones", "random:3")}
    assert [said[-2] for _, said in found.values()][:2] == [
        "0.0 [0.0, 0.0, 0.0, 0.0, 0.0] 0.0 False",
        "1.0 [1.0, 1.0, 1.0, 1.0, 1.0] 1.0 False",
    ]
    assert {said[-1] for _, said in found.values()} == {"1"}
    assert len({result.peak_reserved_bytes for result, _ in found.values()}) == 1
    assert any("random (seed 3)" in warning for warning in found["random:3"][0].warnings)


def test_a_scripted_module_trains(rehearsed):
    code = """
import torch
model = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())).cuda()
model(torch.ones(2, 8, device="cuda")).sum().backward()
say("trained")
"""
    result, said = rehearsed(code)
    assert (result.ended, said) == ("finished", ["trained"])
