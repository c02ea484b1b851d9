"""Jobs under torch.compile: PyTorch's own compiler on fake tensors, held against rehearsals."""

import ast
import json
import os
import subprocess
import sys
import warnings
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import vrambudget
from vrambudget import validate
from vrambudget.budget import Budget
from vrambudget.cli import compare, main
from vrambudget.compiled import cache, config, simulated
from vrambudget.compiled.findings import findings
from vrambudget.config.job import Job
from vrambudget.config.versions import installed_version, plain_version
from vrambudget.dtypes import float32
from vrambudget.engine.context import Platform, context, recording
from vrambudget.engine.tensor import empty
from vrambudget.errors import NotModelledError
from vrambudget.scenario import resolve
from vrambudget.simulate import Recording, simulate
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import replay

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


def needs_a_compiler() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    if sys.platform != "linux":
        pytest.skip("PyTorch's compiler is followed on Linux")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return the cache that these tests keep what was compiled in."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(folder, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


@pytest.fixture(scope="module")
def small(folder) -> Budget:
    needs_a_compiler()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("XDG_CACHE_HOME", str(folder))
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


QWEN = {
    "model_type": "qwen2",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "tie_word_embeddings": True,
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fields", "peaks"),
    [
        ({"lora_rank": 8}, {"2.11": (119518472, 121224192, 153092096)}),
        ({"checkpointing": "full"}, {"2.11": (109664520, 110321664, 142606336)}),
        ({"loop": "trainer"}, {"2.11": (116902172, 117954560, 142606336)}),
    ],
    ids=["LoRA", "checkpointing", "Trainer"],
)
@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_adapters_and_checkpoints_are_compiled(fields, peaks):
    """`peaks` are those of a rehearsal on a virtual A100, by the version of torch."""
    needs_a_compiler()
    pytest.importorskip("peft")
    job = {"batch": 4, "block": 256, "precision": "amp-bf16", "optimizer_impl": "fused"}
    budget = vrambudget.estimate(QWEN, gpu="A100", compile=True, **job, **fields)
    peak = budget.peak
    found = (peak.requested_bytes, peak.allocated_bytes, peak.reserved_bytes)
    assert found == peaks.get(plain_version(installed_version("torch")), found)
    plain = vrambudget.estimate(QWEN, gpu="A100", **job, **fields)
    assert budget.parameters == plain.parameters
    assert found[0] != plain.peak.requested_bytes


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_a_kernel_is_timed_once_beside_a_buffer_as_large_as_the_cards_cache():
    needs_a_compiler()
    import torch  # noqa: PLC0415

    from vrambudget.compiled import tuning  # noqa: PLC0415 - it imports torch
    from vrambudget.compiled.fake_storages import GpuMode  # noqa: PLC0415
    from vrambudget.compiled.model import on_gpu  # noqa: PLC0415

    written = {"mutated_arg_names": ["y"], "optimize_mem": False}
    with recording(Platform(l2_bytes=4096)) as tape:
        mode = GpuMode()
        fn = tuning.jit(lambda x, y: (x, y))
        kernel = tuning.TunedKernel(mode.tuned, fn, filename="a", configs=[1, 2], **written)
        with on_gpu(mode):
            x = torch.empty(100, dtype=torch.uint8, device="cuda")
            kernel.run(x, x[:10])
            kernel.run(x, x[:10])
        again = tuning.TunedKernel(mode.tuned, fn, filename="a", configs=[1, 2], **written)
        again.run(x, x)
        del x
    assert tape.sizes == [100, *[10, 4096, 10] * 2]


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_copies_that_would_raise_the_peak_go_to_the_host():
    needs_a_compiler()
    import torch  # noqa: PLC0415

    from vrambudget.compiled import tuning  # noqa: PLC0415 - it imports torch
    from vrambudget.compiled.fake_storages import GpuMode  # noqa: PLC0415
    from vrambudget.compiled.model import on_gpu  # noqa: PLC0415

    with recording(Platform(l2_bytes=4096)) as tape:
        mode = GpuMode()
        fn = tuning.jit(lambda x, y: (x, y))
        written = {"mutated_arg_names": ["x", "y"], "optimize_mem": True}
        kernel = tuning.TunedKernel(mode.tuned, fn, filename="a", configs=[1, 2], **written)
        with on_gpu(mode):
            x, y = (torch.empty(n, dtype=torch.uint8, device="cuda") for n in (6000, 1000))
            del_me = torch.empty(2000, dtype=torch.uint8, device="cuda")
            del del_me
            kernel.run(x, y)
        del x, y
    assert tape.sizes == [6000, 1000, 2000, *[1000, 4096, 1000] * 2]


@contextmanager
def card():
    """Run inside as on a job's card; give its mode."""
    needs_a_compiler()
    from vrambudget.compiled.fake_storages import GpuMode  # noqa: PLC0415 - it imports torch
    from vrambudget.compiled.model import on_gpu  # noqa: PLC0415

    with recording(Platform()):
        mode = GpuMode()
        with on_gpu(mode):
            yield mode


def made_by(call) -> list[int]:
    """Return the bytes that a call allocates, one after the other."""
    before = len(context.tape.sizes)
    call()
    return context.tape.sizes[before:]


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_a_batch_that_the_compiler_left_in_a_cycle_is_given_back_after_backward():
    with card() as mode:
        import torch  # noqa: PLC0415

        from vrambudget.compiled.model import Graph  # noqa: PLC0415 - it imports torch
        from vrambudget.traced.shadows import as_parameter  # noqa: PLC0415

        weight = torch.nn.Parameter(torch.empty(4, device="cuda"))
        loss = weight.sum()
        cycle = [torch.empty(1000, device="cuda")]
        cycle.append(cycle)
        batch = mode.storage_of(cycle[0]).index
        del cycle
        assert batch in mode.alive_since(0)
        own = as_parameter(mode.tensor_of(weight))
        Graph(mode, loss, [(weight, own)]).run([mode.tensor_of(loss)], ())
        assert batch not in mode.alive_since(0)
        assert own.grad.storage.purpose == "gradients"
        assert weight.grad is None


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_a_second_gradient_is_added_into_the_first_unless_somebody_else_holds_it():
    with card():
        import torch  # noqa: PLC0415

        w = torch.nn.Parameter(torch.empty(100, device="cuda"))
        used_twice = (w * 2).sum() + (w * 3).sum()
        one, scaled = 4, 400  # the loss' gradient, and each product's
        assert made_by(used_twice.backward) == [one, scaled, scaled]
        w.grad = None
        held = []
        first = w * 2
        first.register_hook(held.append)  # the gradient of w + 0, too, which is the same tensor
        shared = ((w + 0) + first).sum()
        assert scaled in made_by(shared.backward)


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_a_gradient_of_a_later_layer_is_in_grad_before_an_earlier_one_is_made():
    with card() as mode:
        import torch  # noqa: PLC0415

        from vrambudget.compiled.model import Graph  # noqa: PLC0415 - it imports torch
        from vrambudget.traced.shadows import as_parameter  # noqa: PLC0415

        weights = [torch.nn.Parameter(torch.empty(100, device="cuda")) for _ in range(3)]
        ours = [as_parameter(mode.tensor_of(w)) for w in weights]
        for w in ours:
            w.grad = mode.tensor_of(torch.empty(100, device="cuda"))
        x = torch.empty(100, device="cuda")
        for w in weights:
            x = x * w
        graph = Graph(mode, x.sum(), [*zip(weights, ours, strict=True)])
        del x, w
        begin = len(context.tape.events)
        first = len(context.tape.sizes)
        graph.run([empty((), float32)], ())
        alive, most = 0, 0
        for event in context.tape.read(begin, len(context.tape.events)):
            if event.storage > first:
                alive += event.change * context.tape.sizes[event.storage]
                most = max(most, alive)
        assert most == 3 * 400  # of one product: its two gradients, and the one that came in


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_numbers_drawn_in_main_memory_are_read_as_a_layer_that_may_be_skipped_does():
    needs_a_compiler()
    import torch  # noqa: PLC0415

    from vrambudget.compiled.fake_storages import GpuMode  # noqa: PLC0415 - it imports torch
    from vrambudget.compiled.inductor import _sampled  # noqa: PLC0415
    from vrambudget.compiled.model import on_gpu  # noqa: PLC0415

    with recording(Platform()) as tape:
        mode = GpuMode()
        with on_gpu(mode):
            assert not torch.rand([]) < 0.0  # OPT, between the graphs of two layers
            compiled = _sampled((), (), torch.float32)  # in a graph
            assert not compiled < 0.1
            assert _sampled((2,), (1,), torch.int64).tolist() == [0, 0]
            x = torch.ones(8, device="cuda") * compiled
            assert x.device.type == "cuda"
        del x
    assert tape.sizes == [32, 32]


def test_the_report_names_the_compiler(small):
    assert any("own compiler" in warning for warning in small.warnings)


def test_the_same_question_is_not_compiled_again(small, monkeypatch):
    monkeypatch.setattr(simulated, "elsewhere", None)
    assert vrambudget.estimate(SMALL, gpu="A100", compile=True, **JOB) == small


def test_an_answer_that_was_kept_needs_no_torch(small):
    assert small.fits
    code = "import sys, vrambudget; job = eval(sys.argv[1]); vrambudget.estimate(**job)"
    job = {"model": SMALL, "gpu": "A100", "compile": True, **JOB}
    told = f"{code}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", told, repr(job)], capture_output=True, text=True, check=True
    )
    assert not {"torch", "vrambudget.compiled.build"} & {*done.stdout.split()}


def test_another_question_has_another_place_in_the_cache():
    job = Job.parse({"batch": 8, "block": 256, "compile": True})
    other = job.model_copy(update={"batch": 9})
    place = cache.place_of(SMALL, job, Platform())
    assert place == cache.place_of(dict(SMALL), job, Platform())
    assert place != cache.place_of(SMALL, other, Platform())
    assert place != cache.place_of({**SMALL, "n_layer": 3}, job, Platform())
    assert place != cache.place_of(SMALL, job, Platform(multiprocessors=28))


@pytest.mark.parametrize(
    ("source", "pads"), [("virtual GPU (vrambudget rehearse)", False), ("real", None)]
)
def test_validation_takes_the_virtual_cards_benchmark(monkeypatch, source, pads):
    record = json.loads(RECORDS.read_text(encoding="utf-8").splitlines()[0])
    found = []

    def simulated(config, _job, _platform):
        found.append(config.pads)
        raise NotModelledError("enough")

    monkeypatch.setattr(validate, "simulate", simulated)
    list(validate.validate([{**record, "source": source}]))
    assert found == [pads]


def test_a_benchmark_that_is_known_is_not_asked_both_ways(monkeypatch, tmp_path):
    needs_a_compiler()
    monkeypatch.setenv("VRAMBUDGET_CACHE", str(tmp_path))
    monkeypatch.setattr(simulated, "elsewhere", lambda function, *given: function(*given))
    scenario = resolve("nanogpt", block=64, gpu="A100", compile=True)
    config, others = scenario.config, (scenario.job, scenario.platform)
    asked = []

    def recorded(config):
        asked.append(config.pads)
        findings.asked.add("a product")
        return Recording(Tape(), 0, 0)

    simulated.fullest(config, *others, recorded, Recording)
    known = config.model_copy(update={"pads": False})
    simulated.fullest(known, *others, recorded, Recording)
    assert asked == [None, True, False]


def test_a_tape_comes_back_from_the_cache_as_it_was(tmp_path):
    scenario = resolve("nanogpt", block=64, gpu="A100", steps=3)
    tape = simulate(scenario.config, scenario.job, scenario.platform).tape
    place = tmp_path / "kept" / "tape.json"
    cache.keep(place, cache.written(tape, {"parameters": 7}))
    found = cache.kept(place)
    assert found is not None
    assert found[1] == {"parameters": 7}
    assert replay(found[0]) == replay(tape)
    assert found[0].contents == tape.contents


@pytest.mark.parametrize(("name", "differs"), [("bart-base", True), ("gpt2", False)])
def test_a_report_lists_what_barts_compiled_job_was_seen_to_lack(name, differs):
    config = resolve(name, gpu="A100", compile=True).config
    assert any("BART's first backward pass" in each for each in config.not_modelled()) == differs


def test_a_damaged_file_is_told_and_written_anew(tmp_path, monkeypatch):
    scenario = resolve("nanogpt", block=64, gpu="A100", compile=True)
    job, platform = scenario.job, scenario.platform
    made = simulate(scenario.config, job.model_copy(update={"compile": False}), platform)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = cache.written(made.tape, {"parameters": 7})
    monkeypatch.setattr(simulated, "elsewhere", lambda *_: text)
    monkeypatch.setattr(config.CompiledConfig, "refuse", lambda *_: None)
    place = cache.place_of(scenario.config.keys, job, platform)
    place.parent.mkdir(parents=True)
    place.write_text("{")
    for damaged in (True, False):
        simulated.fullest(scenario.config, job, platform, None, lambda tape, **_: tape)
        assert any("is damaged" in note for note in findings.notes()) == damaged


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tape": {}, "findings": {}}'])
def test_a_broken_file_in_the_cache_is_as_none(tmp_path, text):
    place = tmp_path / "tape.json"
    place.write_text(text)
    assert cache.kept(place) is None


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_a_live_module_that_was_compiled_is_followed_compiled():
    needs_a_compiler()
    import torch  # noqa: PLC0415

    module = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU())
    weight = module[0].weight
    budget = vrambudget.estimate(
        torch.compile(module),
        inputs=[torch.zeros(64, 256)],
        loss=lambda outputs, _inputs: outputs.float().mean(),
        gpu="A100",
        optimizer="sgd",
    )
    assert budget.job["compile"]
    assert budget.parameters.total == 256 * 512 + 512
    assert budget.breakdown["activations"] > 0
    assert module[0].weight is weight
    assert weight.device.type == "cpu"
    what_stood_in_for_a_card_is_taken_back()


def what_stood_in_for_a_card_is_taken_back() -> None:
    import torch  # noqa: PLC0415
    from torch._inductor.codecache import PyCodeCache  # noqa: PLC0415
    from torch._subclasses.fake_tensor import FakeTensor  # noqa: PLC0415

    named = (torch.cuda.get_device_properties, PyCodeCache.load_by_key_path)
    assert not any("vrambudget" in function.__module__ for function in named)
    assert "vrambudget" not in FakeTensor.__torch_dispatch__.__module__
    assert torch.autograd.is_multithreading_enabled()


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_a_tensor_without_elements_that_is_made_on_the_card_is_compiled():
    needs_a_compiler()
    import torch  # noqa: PLC0415

    class Cached(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)

        def forward(self, x):
            keys = self.layer(x)
            cache = torch.tensor([], dtype=keys.dtype, device=keys.device)  # as T5's begins
            return torch.cat([cache, keys], dim=-2)

    job = {"inputs": [torch.zeros(64, 64)], "gpu": "A100", "optimizer": "sgd"}
    job["loss"] = lambda outputs, _inputs: outputs.float().mean()
    budget = vrambudget.estimate(torch.compile(Cached()), **job)
    assert budget.parameters.total == 64 * 64 + 64
    assert budget.breakdown["gradients"] > 0


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_graph_breaks_are_told_with_their_lines_and_compiling_as_it_begins(caplog):
    needs_a_compiler()
    import torch  # noqa: PLC0415

    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

        def forward(self, x):
            x = self.one(x).relu()
            torch.compiler.disable(print)()
            return x if torch.rand([]) < 0 else self.other(x)  # as LayerDrop is written

    caplog.set_level("INFO", "vrambudget")
    budget = vrambudget.estimate(
        torch.compile(Broken()),
        inputs=[torch.zeros(64, 64)],
        loss=lambda outputs, _inputs: outputs.float().mean(),
        gpu="A100",
        optimizer="sgd",
    )
    assert caplog.messages == ["compiling Broken with PyTorch's own compiler ..."]
    line = Broken.forward.__code__.co_firstlineno + 2
    told = [note for note in budget.warnings if note.startswith("graph break")]
    assert any(f"{Path(__file__).name}:{line}: " in note for note in told), told
    assert not any("vrambudget" in note for note in told), told  # none of our own


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"backend": "eager"}, "with backend='eager' is"),
        ({"mode": "reduce-overhead"}, "with mode='reduce-overhead' is"),
        ({"mode": "max-autotune"}, "with mode='max-autotune' is"),
        ({"options": {"epilogue_fusion": True}}, "with options={'epilogue_fusion': True} is"),
        ({"dynamic": True}, "with dynamic=True, one graph for all sizes, is"),
    ],
    ids=["backend", "CUDA graphs", "autotuning", "options", "dynamic"],
)
@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_a_module_that_was_compiled_in_another_way_is_refused_by_name(options, named):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    compiled = torch.compile(torch.nn.Linear(2, 2), **options)
    with pytest.raises(NotModelledError, match=named) as caught:
        vrambudget.estimate(compiled, inputs=[torch.zeros(2, 2)])
    assert "rehearse" in caught.value.hint


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_a_module_that_was_compiled_in_place_is_not_counted_as_eager():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    module = torch.nn.Linear(2, 2)
    module.compile()
    with pytest.raises(NotModelledError, match="in place"):
        vrambudget.preflight(module, inputs=[torch.zeros(2, 2)], strict=True)
    with pytest.raises(NotModelledError, match="in place"):
        vrambudget.estimate(module, inputs=[torch.zeros(2, 2)])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, {}),
        ({"compile": False, "compile_mode": "default"}, {}),
        (
            {"compile": True, "compile_mode": "max-autotune"},
            {"torch_compile": True, "torch_compile_mode": "max-autotune"},
        ),
    ],
    ids=["silent", "eager", "compiled"],
)
def test_an_eager_job_of_trainer_names_no_mode_which_would_compile_it(fields, said):
    pytest.importorskip("torch")
    from vrambudget.measure.loops.trainer import compiles  # noqa: PLC0415 - it imports torch

    assert compiles(fields) == said


def test_a_comparison_takes_the_virtual_card_s_answer_about_padding(monkeypatch):
    asked = []

    def simulated(config, *_):
        asked.append(config.pads)
        return Recording(Tape(), 0, 0)

    monkeypatch.setattr(compare, "simulate", simulated)
    compare.estimated(resolve("gpt2", batch=1, block=8, gpu="A100", compile=True))
    assert asked == [False]


def refused(model="nanogpt", **fields):
    with pytest.raises(NotModelledError) as caught:
        vrambudget.estimate(model, block=64, compile=True, **fields)
    return caught.value


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda _name: None)
    error = refused()
    assert "torch is not installed" in str(error)
    assert "pip install 'vrambudget[torch]'" in error.hint
    assert "rehearse" in error.hint


def test_another_version_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    monkeypatch.setattr(config, "installed_version", lambda _package: "2.9.1")
    error = refused()
    assert "torch 2.9 is installed" in str(error)
    assert "2.11" in error.hint


def test_a_gpu_that_cuda_13_has_no_code_for_is_not_compiled_for():
    asked = {"model": "gpt2", "gpu": "v100-16gb", "block": 64}
    with pytest.raises(NotModelledError, match=r"CUDA 13\.0 has no code for .* 7\.0; --torch"):
        vrambudget.estimate(**asked, compile=True, torch="2.13")
    eager = vrambudget.estimate(**asked, torch="2.11")
    assert any("CUDA 13.0 has no code" in note for note in eager.warnings)
    named = vrambudget.estimate(**asked, torch="2.11+cu126")
    assert not any("no code" in note for note in named.warnings)


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_another_system_is_refused_by_name(monkeypatch, platform):
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    monkeypatch.setattr(config.sys, "platform", platform)
    error = refused()
    assert platform in str(error)
    assert "rehearse" in error.hint


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"loop": "lightning"}, "loop"),
        ({"mode": "forward"}, "mode"),
        ({"model": "gpt2", "checkpointing": "selective-2"}, "checkpointing"),
        ({"checkpointing": "full"}, "checkpointing"),
        ({"compile_mode": "reduce-overhead"}, "compile_mode is 'reduce-overhead'"),
        ({"compile_mode": "max-autotune"}, "compile_mode is 'max-autotune'"),
        (
            {"compile_mode": "max-autotune-no-cudagraphs"},
            "compile_mode is 'max-autotune-no-cudagraphs'",
        ),
        ({"model": "codellama-7b", "quant": "nf4", "lora_rank": 8}, "quant"),
    ],
    ids=[
        "Lightning",
        "a forward pass",
        "every second layer",
        "nanoGPT in parts",
        "CUDA graphs",
        "autotuning",
        "autotuning without CUDA graphs",
        "4 bit",
    ],
)
def test_what_is_not_compiled_here_is_refused_by_name(monkeypatch, fields, named):
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    monkeypatch.setattr(config, "installed_version", lambda _package: "2.11.0")
    assert named in str(refused(**fields))


def test_a_refused_job_ends_with_a_line_and_not_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda _name: None)
    assert main(["nanogpt", "--compile", "--block", "64"]) == 2
    assert capsys.readouterr().err.startswith("error: torch.compile is traced by PyTorch's own")


def test_nothing_of_the_compiler_is_loaded_without_it():
    code = "import vrambudget, sys; vrambudget.estimate('gpt2'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("vrambudget.compiled.")}
    assert loaded <= {"vrambudget.compiled.asked"}


PRIVATE = ROOT / "vrambudget" / "compiled" / "private.py"


def test_private_names_of_torch_are_those_that_are_looked_up_at_start():
    """In `private.py`, by import or by name; what only some releases have is asked for by text."""
    known = PRIVATE.read_text(encoding="utf-8")
    for file in PRIVATE.parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and file != PRIVATE:
                assert "torch._" not in f"{node.module}.", (file, node.lineno)
            if isinstance(node, ast.Attribute):
                name = ast.unparse(node)
                is_private = name.startswith("torch._") and "(" not in name
                assert name in known or not is_private, (file, node.lineno)


def test_a_private_name_that_moved_is_one_sentence_and_the_way_out(monkeypatch, tmp_path, capfd):
    needs_a_compiler()
    moved = "import torch._inductor.fx_passes.pad_mm as module; del module.no_dispatch"
    (tmp_path / "sitecustomize.py").write_text(moved)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["nanogpt", "--compile", "--block", "48"]) == 2
    error, tip = capfd.readouterr().err.strip().splitlines()
    assert error.endswith("pad_mm' has no attribute 'no_dispatch'")
    assert "vrambudget rehearse" in tip


CHECK = """
import json, sys
from vrambudget.validate import validate
for check in validate(map(json.loads, sys.stdin)):
    print(json.dumps([check.id, check.problem, {c: check.error(c) for c in check.predicted}]))
"""
PEAKS = ("requested", "allocated", "reserved")


@pytest.mark.virtual_gpu
@pytest.mark.parametrize("file", sorted(RECORDS.parent.glob("*.jsonl")), ids=lambda file: file.stem)
def test_the_compiler_of_the_rehearsals_equals_them(file):
    python = os.environ.get("VRAMBUDGET_PYTHON")
    if not python:
        pytest.skip("VRAMBUDGET_PYTHON names no Python")
    records = file.read_text(encoding="utf-8").splitlines()
    version = json.loads(records[0])["versions"]["torch"]
    asked = [python, "-c", "import torch; print(torch.__version__)"]
    theirs = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if plain_version(theirs) != plain_version(version):
        pytest.skip(f"these were rehearsed with torch {version}")
    paths = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, "-c", CHECK],
        input="\n".join(records),
        capture_output=True,
        text=True,
        check=True,
        env=paths,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(records)
    for job, problem, errors in found:
        assert problem is None, (job, problem)
        assert all(errors[peak] == 0 for peak in PEAKS), (job, errors)
