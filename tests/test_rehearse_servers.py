"""Servers that are rehearsed: their command, their log, and that nothing of them is left."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from virtual import PYTHON, VIRTUAL_GPU

from vrambudget.cli import main
from vrambudget.config.gpus import find_gpu
from vrambudget.errors import VramBudgetError
from vrambudget.integrations import server_rehearsal
from vrambudget.rehearse import rehearse
from vrambudget.rehearse.report import render
from vrambudget.rehearse.servers.command import beside_python, prepared, server_of
from vrambudget.rehearse.servers.log import ServerLog
from vrambudget.rehearse.servers.start import start_of

H100 = find_gpu("h100")
SERVE = ("vllm", "serve", "llama-3.1-8b")


@pytest.mark.parametrize(
    ("words", "engine", "model", "devices"),
    [
        ("vllm serve m --max-model-len 8192", "vllm", "m", 1),
        ("vllm serve --model m --tensor_parallel_size=2 -pp 2", "vllm", "m", 4),
        ("/env/bin/python -u /env/bin/vllm serve m -tp 4", "vllm", "m", 4),
        ("python3 -m vllm.entrypoints.openai.api_server --model=m", "vllm", "m", 1),
        ("python -m sglang.launch_server --model-path m --tp 2", "sglang", "m", 2),
        ("python -m sglang.bench_serving --model m", None, None, None),
        ("vllm bench throughput --model m", None, None, None),
        ("python train.py serve", None, None, None),
    ],
)
def test_a_server_is_known_by_its_command(words, engine, model, devices):
    found = server_of(words.split())
    assert (found and (found.engine, found.model, found.devices())) == (
        engine and (engine, model, devices)
    )


def test_a_model_without_files_is_its_configuration_and_the_port_is_a_free_one(tmp_path):
    options = ("--port", "8000", "--max-model-len", "8192", "--host=0.0.0.0")
    found = prepared(server_of((*SERVE, *options)), tmp_path, H100, "2.10.0+cu128")
    assert found.command[:2] == SERVE[:2]
    config = json.loads((Path(found.command[2]) / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_hidden_layers"] == 32
    rest = found.command[3:-4]
    assert rest == ("--max-model-len", "8192", "--load-format", "dummy", "--skip-tokenizer-init")
    assert found.command[-4:-1] == ("--host", "127.0.0.1", "--port")
    assert found.variables["VRAMBUDGET_KERNELS"] == str(256 << 20)
    assert "VRAMBUDGET_NCCL" not in found.variables


def test_a_checkpoint_is_that_which_the_options_ask_for(tmp_path):
    words = (*SERVE, "--quantization=awq_marlin")
    found = prepared(server_of(words), tmp_path, H100, "2.10.0")
    config = json.loads((Path(found.command[2]) / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "awq"
    assert config["torch_dtype"] == "float16"  # vLLM's own kernel for AWQ takes no other
    mine = tmp_path / "gptq"
    mine.mkdir()
    (mine / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
    (mine / "tokenizer.json").write_text("{}")
    found = prepared(server_of(("vllm", "serve", str(mine))), tmp_path, H100, "2.10.0")
    config = json.loads((Path(found.command[2]) / "config.json").read_text())
    # without files vLLM takes no layer for one that GPTQ quantised
    assert config["quantization_config"]["modules_in_block_to_quantize"] == [["_proj"]]
    assert (Path(found.command[2]) / "tokenizer.json").is_symlink()
    words = ("vllm", "serve", "deepseek-v2-lite")
    found = prepared(server_of(words), tmp_path, H100, "2.10.0")
    config = json.loads((Path(found.command[2]) / "config.json").read_text())
    assert (config["n_group"], config.get("quantization_config")) == (1, None)


def test_a_folder_with_a_tokenizer_is_served_as_it_is_and_ranks_speak_over_nvlink(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    words = ("vllm", "serve", str(model), "--load-format", "auto", "-tp", "2")
    found = prepared(server_of(words), tmp_path, H100, "2.8.0")
    assert found.command[:-4] == words
    assert found.notes == ("nothing was added",)
    assert found.variables["VRAMBUDGET_KERNELS"] == str(133 << 20)
    assert found.variables["VRAMBUDGET_LINKED"] == "1"
    alone = prepared(server_of(words), tmp_path, find_gpu("rtx 4090"), "2.10.0")
    assert "VRAMBUDGET_LINKED" not in alone.variables


VLLM = """\
(APIServer pid=1) INFO 11-23 21:58:00 [utils.py:299] vLLM server version 0.19.0, serving model m
(Worker_TP0 pid=2) INFO 11-23 21:58:40 [gpu_model_runner.py:44] Model loading took 7.12 GiB memory
(Worker_TP1 pid=3) INFO 11-23 21:58:40 [gpu_model_runner.py:44] Model loading took 7.25 GiB memory
(Worker_TP0 pid=2) INFO 11-23 21:58:41 [gpu_worker.py:436] Available KV cache memory: 58.1 GiB
(Worker_TP1 pid=3) INFO 11-23 21:58:41 [gpu_worker.py:436] Available KV cache memory: 58.0 GiB
(EngineCore pid=2) INFO 11-23 21:58:42 [kv_cache_utils.py:1319] GPU KV cache size: 475,968 tokens
(EngineCore pid=2) INFO [k.py:1] Maximum concurrency for 8,192 tokens per request: 58.10x
(Worker_TP0 pid=2) INFO [g.py:6] Graph capturing finished in 10 secs, took 0.96 GiB
(APIServer pid=1) INFO:     Application startup complete.
"""
SGLANG = """\
[2026-11-23 20:00:00] Load weight end. type=LlamaForCausalLM, avail mem=62.1 GB, mem usage=15.02 GB.
[2026-11-23 20:00:01] KV Cache is allocated. dtype: bf16, #tokens: 419006, K size: 25.57 GB
The server is fired up and ready to roll!
"""


def read(text):
    """Return a log that read these lines, and whether any said that the server is ready."""
    log = ServerLog()
    for line in text.splitlines():
        log.read(line)
    return log, log.ready


def test_the_log_of_several_ranks_counts_as_the_engine_counts_them():
    log, ready = read(VLLM)
    assert ready
    assert log.version == "0.19.0"
    assert log.values == {
        "weights_bytes": round(7.25 * 2**30),
        "cache_bytes": 58 << 30,
        "tokens": 475_968,
        "max_model_len": 8192,
        "concurrency": 58.1,
        "graphs_bytes": round(0.96 * 2**30),
    }
    assert log.lines[0] == "Model loading took 7.12 GiB memory"
    warm = "INFO [core.py:283] init engine (profile, create kv cache, warmup model) took 13.61 s"
    assert read(warm)[1]  # what the HTTP server does then is not the GPU's
    engines = ServerLog(engines=2)
    assert [engines.read(warm), engines.read(warm)] == [False, True]
    log, ready = read(SGLANG)
    assert ready
    assert log.values == {"weights_bytes": round(15.02 * 2**30), "tokens": 419_006}


TOO_LONG = (
    "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB"
    " KV cache is needed, which is larger than the available KV cache memory (4.10 GiB). Based on"
    " the available memory, the estimated maximum model length is 33536."
)
TOO_LARGE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has"
STATES = "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (248)."
STATES = f"{STATES} Please lower max_num_seqs to at most 248 or increase gpu_memory_utilization."
BAD = "vllm: error: unrecognized arguments: --no-such"
ASSERTION = ("AssertionError", None)
LAST = "RuntimeError: Engine core initialization failed. See root cause above."


@pytest.mark.parametrize(
    ("line", "error", "changes"),
    [
        (TOO_LONG, TOO_LONG, "--max-model-len 33536"),
        (TOO_LARGE, TOO_LARGE, "--quantization fp8"),
        (STATES, STATES, "--max-num-seqs 248"),
        (BAD, "unrecognized arguments: --no-such", None),
        ("(EngineCore pid=2) ERROR 11-23 22:39:57 [core.py:1108] AssertionError", *ASSERTION),
    ],
)
def test_an_engine_that_ends_says_why_and_what_to_change(tmp_path, line, error, changes):
    server = server_of((*SERVE, "--max-model-len", "131072"))
    log, ready = read(f"(EngineCore pid=2) ERROR 11-23 21:58:41 [core.py:1] {LAST}\n{line}\n")
    if line == BAD:
        log, ready = read(line)
    start = start_of(server, prepared(server, tmp_path, H100, "2.10.0"), log, tmp_path)
    assert (ready, start.error) == (False, error)
    assert (start.changes[0].startswith(changes) if changes else not start.changes) is True


# ---- a server's processes on the virtual GPU -----------------------------------------------------

ENGINE = """#!PYTHON
import multiprocessing, os, signal, sys, time
from multiprocessing import resource_tracker, shared_memory
import torch

def core():
    held = shared_memory.SharedMemory(create=True, size=1 << 20)
    print(held.name, file=open(os.environ["PIDS"] + ".shared", "w"), flush=True)
    resource_tracker.unregister(held._name, "shared_memory")  # which else removes it
    weights = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    print("INFO 11-23 21:58:40 [runner.py:44] Model loading took 1.0 GiB memory", flush=True)
    if "--too-long" in sys.argv:
        raise ValueError("the estimated maximum model length is 4096 of this KV cache memory")
    held = torch.empty(100, device="cuda")
    print("INFO 11-23 21:58:42 [kv.py:1] GPU KV cache size: 1,024 tokens", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    assert sys.argv[1] == "serve" and os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    print(os.getpid(), file=open(os.environ["PIDS"], "w"))
    child = multiprocessing.get_context("spawn").Process(target=core)
    child.start()
    print(child.pid, file=open(os.environ["PIDS"], "a"), flush=True)
    if "--slow" not in sys.argv:
        child.join(10 if "--too-long" not in sys.argv else None)
    if child.exitcode:
        sys.exit(1)
    if "--slow" not in sys.argv:
        print("INFO:     Application startup complete.", flush=True)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        os._exit(0)  # and leaves its child to us
"""


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """A program named vllm that does what an engine's processes do."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(ENGINE.replace("PYTHON", PYTHON, 1))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    return tmp_path / "pids"


def alive(pids):
    """Return which of the server's processes still run; a zombie does not."""
    states = [Path(f"/proc/{pid}/status") for pid in pids.read_text().split()]
    return [s.parent.name for s in states if s.exists() and "State:\tZ" not in s.read_text()]


@pytest.mark.parametrize(
    ("option", "ending", "code", "verdict"),
    [
        ("--eager", "ready", 0, "STARTS: vLLM is ready with 1,024 tokens of keys and values"),
        ("--too-long", "failed", 1, "DOES NOT START: vLLM ended with exit code 1"),
        ("--slow", "timeout", 2, "NOT KNOWN: vLLM was not ready at the time limit"),
    ],
)
@pytest.mark.virtual_gpu
@VIRTUAL_GPU[1]
def test_a_server_is_ended_once_it_is_ready_and_leaves_no_process(
    engine, option, ending, code, verdict
):
    limit = 15 if option == "--slow" else 120
    result = rehearse([*SERVE, option], gpu="h100", quiet=True, timeout=limit)
    assert (result.ended, result.exit_code) == (ending, code)
    text = render(result)
    assert text.startswith(verdict)
    assert "Model loading took 1.0 GiB memory" in text
    assert ("try --max-model-len 4096" in text) == (option == "--too-long")
    assert not alive(engine)
    shared = Path(f"{engine}.shared").read_text().strip()
    assert not (Path("/dev/shm") / shared).exists()  # noqa: S108 - where Linux keeps it


@pytest.mark.virtual_gpu
@VIRTUAL_GPU[1]
def test_serve_answers_by_the_engines_own_start_once_for_each_version(
    engine, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("VRAMBUDGET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(server_rehearsal, "_version", lambda *_: "0.33.0")
    words = ["serve", "llama-3.1-8b", "--gpu", "h100", "--rehearse", "--enforce-eager"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("STARTS: vLLM is ready with 1,024 tokens")
    engine.unlink()
    assert main([*words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["starts"], found["tokens"], found["weights_bytes"]) == (True, 1024, 1 << 30)
    assert not engine.exists()


def test_an_engine_that_is_not_installed_is_an_error_that_says_how(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("VRAMBUDGET_PYTHON", raising=False)
    with pytest.raises(VramBudgetError, match="no such command: 'vllm'"):
        rehearse(SERVE, gpu="h100")
    (tmp_path / "vllm").touch()
    monkeypatch.setenv("VRAMBUDGET_PYTHON", str(tmp_path / "python"))
    assert beside_python(SERVE) == (str(tmp_path / "vllm"), *SERVE[1:])


def test_a_server_has_no_steps():
    with pytest.raises(VramBudgetError, match="starts its own ranks"):
        rehearse([sys.executable, *SERVE], gpu="h100", steps=3, any_torch=True)


OUTSIDE = """
import torch
free = lambda: torch.cuda.mem_get_info()[0] >> 20
x = torch.ones(8, 8, device="cuda")
before = free()
x @ x
torch.cuda.synchronize()
assert before - free() - (torch.cuda.memory_reserved() >> 20) + 2 == 256, free()
graph, held = torch.cuda.CUDAGraph(), torch.cuda.memory_reserved()
before = free()
with torch.cuda.graph(graph):
    for _ in range(1000):
        x.add_(1)
kept = before - free() - (torch.cuda.memory_reserved() - held >> 20)
assert 16 <= kept <= 20, kept  # 1,000 kernels of 17 KB, in pages
del graph
torch.cuda.empty_cache()
assert free() >= before
"""


@pytest.mark.virtual_gpu
@VIRTUAL_GPU[1]
def test_kernels_and_graphs_take_memory_of_the_driver_where_a_server_is_rehearsed(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("VRAMBUDGET_KERNELS", str(256 << 20))
    monkeypatch.setenv("VRAMBUDGET_GRAPH_NODE", "17000")
    script = tmp_path / "outside.py"
    script.write_text(OUTSIDE)
    result = rehearse([PYTHON, str(script)], gpu="h100")
    assert result.exit_code == 0


def test_undefined_tensors_of_a_foreign_operation_are_given_back_as_empty_ones():
    torch = pytest.importorskip("torch")
    value_tracer = pytest.importorskip("vrambudget.rehearse.hook.vrambudget_hook.value_tracer")

    class Traced(value_tracer.ValueTracer):
        def __init__(self):
            self.torch, self.traced = torch, None

        def described(self, _op):
            return SimpleNamespace(foreign=True)

        def _operate(self, *_args, **_kwargs):
            return [torch.ones(2), None]

    keys = SimpleNamespace(remove=lambda _key: None)
    made = Traced()._operation(keys, None)  # noqa: SLF001 - what PyTorch's dispatcher calls
    assert [list(tensor.shape) for tensor in made] == [[2], [0]]


def _without_vllm():
    """Return why vLLM itself cannot be rehearsed here, or None."""
    code = "import importlib.metadata as m; print(m.version('vllm'))"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
    return f"{PYTHON} has no vLLM 0.19" if not done.stdout.startswith("0.19.") else None


@pytest.mark.virtual_gpu
@pytest.mark.skipif(_without_vllm() is not None, reason=str(_without_vllm()))
def test_vllm_itself_starts_with_what_a_published_log_prints():
    # the first record of tests/records/serving/vllm-0.19.0.jsonl, without CUDA graphs
    flags = "--max-model-len 8192 --gpu-memory-utilization 0.95 --enforce-eager"
    result = rehearse([*SERVE, *flags.split()], gpu="h100", quiet=True)
    found = result.server
    assert result.exit_code == 0
    assert found.version == "0.19.0"
    assert round(found.weights_bytes / 2**30, 2) == 14.99
    assert round(found.activations_bytes / 2**30, 2) == 1.89
    assert abs(found.tokens / 476_016 - 1) < 0.0005
    assert "sampl" in found.peak.line
