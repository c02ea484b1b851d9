"""What fits is what would run: the answer, its neighbour above, the margin, the search's start.

records/largest_batch.jsonl: the largest batch that ran on a virtual card, where one more was out of
memory; PyTorch's own allocator, kernels not run. `context_mib`: what that card took for itself.
"""

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import vrambudget
from vrambudget.cli import main
from vrambudget.errors import VramBudgetError
from vrambudget.planning.fit import Search, fit, largest_batch
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate

RECORDS = [
    json.loads(line)
    for line in (Path(__file__).parent / "records" / "largest_batch.jsonl").read_text().splitlines()
]
SMALL = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 1000}
MIB = 2**20


@pytest.mark.parametrize(
    "record",
    RECORDS,
    ids=lambda r: f"{r['card']}-{r['model']['model_type']}-{r['largest_that_ran']}",
)
def test_the_largest_batch_that_fits_is_the_largest_that_ran(record):
    card = replace(vrambudget.find_gpu(record["card"]), context_bytes=record["context_mib"] * MIB)
    found = vrambudget.max_batch(
        record["model"], gpu=card, margin=0, use_cache=False, **record["job"]
    )
    assert found == record["largest_that_ran"]


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("batch", {"block": 1024}),
        ("batch", {"block": 300, "precision": "fp32", "attention": "eager", "batch": 500}),
        ("batch", {"block": 1024, "mode": "eval", "optimizer": "none"}),
        ("block", {"batch": 8}),
        ("block", {"batch": 13, "attention": "eager", "precision": "fp32"}),
    ],
)
def test_the_answer_fits_and_one_more_does_not(what, fields):
    found = fit(resolve("gpt2", gpu="12GB", **fields), what=what)
    answer = getattr(found, what)
    verdicts = {getattr(point, what): point.fits for point in found.curve}
    assert answer > 1
    assert verdicts[answer]
    assert not verdicts[answer + 1]
    assert all(fits == (n <= answer) for n, fits in verdicts.items())
    for point in found.curve[:: len(found.curve) - 1]:
        budget = vrambudget.estimate(
            "gpt2", gpu="12GB", **{**fields, "batch": point.batch, "block": point.block}
        )
        assert point.fits == budget.fits
        assert point.peak_allocated_bytes == budget.peak.allocated_bytes
        assert point.peak_reserved_bytes == budget.peak.reserved_bytes


def test_the_curve_rises():
    curve = fit(resolve("gpt2", gpu="12GB", block=1024)).curve
    assert len(curve) >= 5
    for one, next_one in itertools.pairwise(curve):
        assert one.batch < next_one.batch
        assert one.peak_allocated_bytes < next_one.peak_allocated_bytes


def test_the_curve_of_a_compiled_job_costs_no_size_beyond_those_that_the_search_tries(monkeypatch):
    compiled = []

    def eager(config, job, platform):
        compiled.append(job.batch)
        return simulate(config, job.model_copy(update={"compile": False}), platform)

    monkeypatch.setattr("vrambudget.planning.fit.simulate", eager)
    job = {"block": 1024, "gpu": "12GB", "torch": "2.11"}
    found = fit(resolve("nanogpt", compile=True, **job))
    assert len(compiled) <= 4
    assert [point.batch for point in found.curve] == sorted(compiled)
    assert {found.batch, found.batch + 1} <= set(compiled)
    assert found.batch == largest_batch(resolve("nanogpt", **job))


def test_where_the_search_starts_does_not_matter():
    answers = {
        largest_batch(resolve("gpt2", gpu="12GB", block=512, batch=start))
        for start in (1, 7, 15, 16, 3000)
    }
    assert len(answers) == 1


def test_a_search_takes_few_tries():
    search = Search(resolve(SMALL, gpu="h200", block=16, use_cache=False), "batch", 0)
    assert search.largest() > 300_000
    assert len(search.points) < 50


def test_a_margin_stays_free():
    scenario = resolve("gpt2", gpu="12GB", block=256)
    margin = 3000 * MIB
    found = fit(scenario, margin_bytes=margin)
    room = scenario.gpu.capacity_bytes - scenario.gpu.context_bytes
    at = {point.batch: point for point in found.curve}
    assert found.batch < fit(scenario).batch
    assert at[found.batch].peak_allocated_bytes <= room - margin
    assert found.batch == vrambudget.max_batch("gpt2", gpu="12GB", block=256, margin="3000MiB")
    assert found.batch == vrambudget.max_batch("gpt2", gpu="12GB", block=256, margin=margin)


def test_a_block_is_never_longer_than_the_table_of_positions():
    assert vrambudget.max_block("gpt2", gpu="h200", batch=1) == 1024


def test_a_target_stays_as_long_as_the_block_that_grows():
    t5 = {"model_type": "t5", "d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4}
    t5 |= {"num_layers": 2, "vocab_size": 50}
    found = fit(resolve(t5, gpu="t4", batch=64, block=16), what="block")
    at = {point.block: point for point in found.curve}
    budget = vrambudget.estimate(t5, gpu="t4", batch=64, block=found.block)
    assert at[found.block].peak_allocated_bytes == budget.peak.allocated_bytes


def test_where_nothing_fits_the_answer_is_0():
    found = fit(resolve("gpt2-xl", gpu="t4", block=1024))
    assert (found.batch, [point.batch for point in found.curve]) == (0, [1])
    assert not found.curve[0].fits


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpu": None}, "no GPU was named"),
        ({"gpu": "T4", "margin": "-1GiB"}, "'-1GiB' is not a size"),
        ({"gpu": "T4", "margin": -1}, "margin is -1"),
        ({"gpu": "T4", "margin": "much"}, "'much' is not a size"),
        ({"gpu": "T4", "block": 4096}, "positions for 1024"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(fields, words):
    with pytest.raises(VramBudgetError, match=words):
        vrambudget.max_batch(SMALL, **fields)


@pytest.fixture
def run(capsys):
    def call(*words):
        code = main(["fit", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_command_s_json_is_the_answer_and_its_curve(run):
    code, out, _ = run("gpt2", "--block", "1024", "--gpu", "12GB", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert set(found) == {"batch", "block", "curve"}
    assert (found["batch"], found["block"]) == (5, 1024)
    assert {"batch", "block", "peak_allocated_bytes", "peak_reserved_bytes", "fits"} == set(
        found["curve"][0]
    )


def test_the_command_says_it_in_a_sentence_first(run):
    _, out, _ = run("gpt2", "--block", "512", "--gpu", "12GB", "--margin", "1GiB")
    assert out.startswith("largest batch that fits: 10 (at block 512, on NVIDIA GeForce RTX 3060")
    assert "with 1.00 GiB left free" in out
    _, out, _ = run("gpt2", "--batch", "1", "--gpu", "12GB", "--longest-block")
    assert out.startswith("longest block that fits: 1024 (at batch 1, ")


def test_what_fits_of_a_generation_is_said_in_its_own_lengths(capsys):
    words = ["fit", "gpt2", "--mode", "generate", "--prompt", "16", "--new", "20", "--gpu", "4GB"]
    main(words)
    assert " (at a prompt of 16 and 20 new tokens, on " in capsys.readouterr().out
    main([*words, "--longest-block"])
    out = capsys.readouterr().out
    assert out.startswith("longest prompt and answer that fits: 1024 (at batch 1, ")


def test_exit_code_1_where_nothing_fits_and_2_for_nonsense(run):
    code, out, _ = run("gpt2-xl", "--gpu", "12GB")
    assert (code, out.splitlines()[0]) == (
        1,
        "not even batch 1 fits on NVIDIA GeForce RTX 3060 with 255.00 MiB left free",
    )
    assert "next: `vrambudget plan gpt2-xl --gpu rtx-3060 --block 1024`" in out
    code, out, err = run("gpt2", "--gpu", "12GB", "--margin", "some")
    assert (code, out) == (2, "")
    assert "'some' is not a size" in err


def accelerate(calls):
    """Return a module like accelerate.utils."""

    def find_executable_batch_size(function=None, starting_batch_size=128):
        calls.append(starting_batch_size)
        return lambda *args: function(starting_batch_size, *args)

    return SimpleNamespace(find_executable_batch_size=find_executable_batch_size)


def test_accelerate_s_search_begins_at_the_batch_that_fits(monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "accelerate", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "accelerate.utils", accelerate(calls))
    train = vrambudget.find_executable_batch_size(
        lambda batch, more: batch + more, model="gpt2", gpu="12GB", block=1024
    )
    assert (calls, train(1000)) == ([5], 1005)
    with pytest.raises(VramBudgetError, match="not even a batch of 1"):
        vrambudget.find_executable_batch_size(model="gpt2-xl", gpu="12GB")


def test_without_accelerate_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate.utils", None)
    with pytest.raises(VramBudgetError, match="needs accelerate"):
        vrambudget.find_executable_batch_size(model="gpt2", gpu="12GB")
