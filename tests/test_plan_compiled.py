"""Plans of jobs under torch.compile: here each takes what an eager one does at half its block."""

import json
from importlib.machinery import ModuleSpec

import pytest

import vrambudget
from vrambudget.cli import main
from vrambudget.compiled import config
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.planning import recipes
from vrambudget.simulate import simulate

LAYERS = {"model_type": "gpt2", "n_layer": 2, "n_embd": 256, "n_head": 8, "vocab_size": 8000}
QUANT = "quant is 'nf4', which is not modelled for a compiled model"


@pytest.fixture
def compiled(monkeypatch) -> list[tuple[str, int]]:
    """Return the jobs that are compiled: what they train, and the batch."""
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    monkeypatch.setattr(config, "installed_version", lambda _package: "2.11.0")
    monkeypatch.setattr(config.sys, "platform", "linux")
    tried = []

    def halved(known, job, platform):
        if job.compile:
            tried.append((recipes.words_of(job, "lora" if job.lora_rank else "full"), job.batch))
            job = recipes.eager(job).model_copy(update={"block": job.block // 2})
        return simulate(known, job, platform)

    monkeypatch.setattr(recipes, "simulate", halved)
    monkeypatch.setattr(recipes, "forked", lambda _pieces: [])  # all is tried here
    return tried


def test_every_recipe_is_compiled_at_few_batches_its_own_and_the_next_one_among_them(compiled):
    asked = {"gpu": "1GiB", "use_cache": False, "torch": "2.11"}
    found = vrambudget.plan(LAYERS, block=128, compile=True, **asked)
    assert found.left_out == (QUANT,)
    assert [choice.layout for choice in found.choices] == [
        "full, adamw, amp-bf16",
        "full, adamw, amp-bf16, checkpointing",
        "lora, adamw, bf16",
        "lora, adamw, bf16, checkpointing",
    ]
    for choice in found.choices:
        fields = {**choice.fields, "compile": False, "block": 64}
        there = vrambudget.estimate(LAYERS, **{**asked, **fields})
        assert there.device.peak_bytes == choice.peak_bytes
        assert "--compile" in choice.command
        batch = choice.fields["batch"]
        assert {(choice.layout, batch), (choice.layout, batch + 1)} <= {*compiled}
    assert len([words for words, _ in compiled if words == "full, adamw, amp-bf16"]) <= 5


def test_what_is_named_stays_and_a_step_is_divided(compiled):
    asked = {"gpu": "1GiB", "block": 128, "goal": "lora", "compile": True, "torch": "2.11"}
    named = vrambudget.plan(LAYERS, batch=3, checkpointing="none", **asked)
    assert compiled == [("lora, adamw, bf16", 3)]
    assert [choice.fields["batch"] for choice in named.choices] == [3]
    divided = vrambudget.plan(LAYERS, per_step=64, checkpointing="none", **asked)
    (choice,) = divided.choices
    assert choice.fields["batch"] * choice.fields.get("grad_accum", 1) == 64


def test_where_nothing_fits_one_gpu_the_plan_says_what_it_did_not_try(compiled, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(LAYERS))
    words = ["plan", str(tmp_path), "--gpu", "360MiB", "--batch", "64", "--block", "1024"]
    assert main([*words, "--compile", "--margin", "0MiB"]) == 1
    told = capsys.readouterr().out
    assert "does not fit on a GPU with 360MiB: " in told
    assert f"left out:\n  {QUANT}\n  several GPUs: a plan without compile looks for them" in told
    assert compiled


def test_what_does_not_compile_is_left_out_and_told(compiled, monkeypatch):
    halved = recipes.simulate

    def simulated(known, job, platform):
        if job.compile and job.checkpointing == "full":
            raise NotModelledError("GPT2LMHeadModel does not compile: graph break")
        return halved(known, job, platform)

    monkeypatch.setattr(recipes, "simulate", simulated)
    asked = {"gpu": "1GiB", "block": 128, "goal": "lora", "compile": True, "torch": "2.11"}
    found = vrambudget.plan(LAYERS, **asked)
    assert [choice.layout for choice in found.choices] == ["lora, adamw, bf16"]
    assert found.left_out == ("GPT2LMHeadModel does not compile: graph break",)
    assert "does not compile" in found._repr_html_()
    with pytest.raises(VramBudgetError, match="graph break"):
        vrambudget.plan(LAYERS, checkpointing="full", **asked)
    assert compiled


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"loop": "lightning"}, "loop is 'lightning'"),
        ({"quant": "nf4", "lora_rank": 8}, "quant is 'nf4'"),
        ({"compile_mode": "max-autotune"}, "compile_mode is 'max-autotune'"),
        ({"gpu": "2xa100"}, "2 GPUs are not modelled for a compiled model"),
    ],
    ids=["a loop", "4 bit", "a mode", "several GPUs"],
)
def test_what_is_not_compiled_is_refused_before_anything_is_tried(compiled, fields, words):
    with pytest.raises(NotModelledError, match=words):
        vrambudget.plan(LAYERS, **{"gpu": "1GiB", "block": 64, "compile": True, **fields})
    assert not compiled
