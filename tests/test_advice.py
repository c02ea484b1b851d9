"""Advice is what `estimate` says of the job that it leads to, and none that does not help."""

import json
import os
import shlex
from dataclasses import replace
from functools import cache

import pytest

import vrambudget
from vrambudget.cli import DOES_NOT_FIT, main
from vrambudget.estimator import trace_job
from vrambudget.planning import advice as planning_advice
from vrambudget.planning import forked
from vrambudget.planning.advice import advise_on
from vrambudget.planning.advised import Advice, Option
from vrambudget.planning.changes import CHANGES, Cost
from vrambudget.planning.lower_bound import LowerBound
from vrambudget.report.advice import next_step, render_advice
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate

COSTS = list(Cost)
JOBS = {
    "nanogpt on 12 GB": ("nanogpt", {"batch": 64, "block": 1024, "gpu": "12GB"}),
    "gpt2 on a T4": ("gpt2", {"batch": 24, "block": 512, "precision": "fp32", "gpu": "t4"}),
    "gpt2 eager, it fits": (
        "gpt2",
        {"batch": 4, "block": 512, "attention": "eager", "gpu": "24GB"},
    ),
    "bert evaluated": ("bert-base-uncased", {"batch": 4000, "mode": "eval", "gpu": "8GB"}),
    "no card": ("gpt2", {"batch": 6, "block": 256, "checkpointing": "full"}),
}
IN_TRLS = "TRL's loop on 8 GB"
ALL = {**JOBS, IN_TRLS: ("qwen2.5-1.5b", {"block": 8192, "gpu": "8GB"})}
each_job = pytest.mark.parametrize("job", JOBS)


@cache
def advice_for(job) -> Advice:
    model, fields = ALL[job]
    return vrambudget.advise(model, **fields)


def changed(model, fields, options, capsys):
    """Return the budget of the job with the options on the command line."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    code = main([model, *words, *shlex.split(options), "--format", "json"])
    out, err = capsys.readouterr()
    assert err == ""
    return code, json.loads(out)


@pytest.mark.parametrize("job", ALL)
def test_every_option_leads_to_the_peak_that_it_promises(job, capsys):
    (model, fields), advice = ALL[job], advice_for(job)
    now = vrambudget.estimate(model, **fields)
    assert len(advice.options) >= 3
    for option in advice.options:
        if "8bit" in option.options and model == "nanogpt":
            continue  # its card says fused, which has to be taken back by hand
        code, budget = changed(model, fields, option.options, capsys)
        peak = (
            budget["device"]["peak_bytes"] if "gpu" in fields else budget["peak"]["reserved_bytes"]
        )
        assert option.device_peak_bytes == peak
        assert option.saved_bytes == advice.device_peak_bytes - peak > 0
        assert option.fits == (None if "gpu" not in fields else code == 0)
    assert advice.fits == (now.fits if "gpu" in fields else None)


@each_job
def test_options_are_sorted_by_what_they_cost(job):
    singles = [o for o in advice_for(job).options if len(o.words) == 1]
    ranks = [(COSTS.index(option.cost), -option.saved_bytes) for option in singles]
    assert ranks == sorted(ranks)


def test_a_loop_is_advised_without_what_it_does_by_itself():
    (best,) = [o.options for o in advice_for(IN_TRLS).options if "--loop" in o.options]
    assert best.startswith("--loop sft --precision bf16")
    assert "--attention-mask" not in best
    assert "--no-use-cache" not in best


def test_the_batch_is_accumulated_to_what_it_was():
    advice = vrambudget.advise("nanogpt", batch=64, grad_accum=2, gpu="12GB")
    assert next(o.options for o in advice.options if "--batch" in o.options) == (
        "--batch 8 --grad-accum 16"
    )


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("gpt2", {"batch": 2, "block": 64, "precision": "fp32"}),
        ("gpt2", {"batch": 2, "block": 64, "precision": "bf16", "lora_rank": 4}),
        ("bert-base-uncased", {"batch": 2, "block": 64, "mode": "eval"}),
        ("gpt2", {"batch": 2, "block": 64, "optimizer": "adafactor"}),
    ],
)
def test_no_variant_takes_less_than_the_floor(model, fields):
    traced = trace_job(resolve(model, **fields))
    floor, scenario = LowerBound(traced), traced.scenario
    assert 0 < floor.bytes(scenario.job) < traced.budget.peak.requested_bytes
    variants = [change.apply(scenario, lambda sizes, at, _: at(sizes[0])) for change in CHANGES]
    for changed in filter(None, variants):
        tape = simulate(changed.config, changed.job, changed.platform).tape
        assert floor.bytes(changed.job) <= tape.peak_requested_bytes()


def test_where_the_weights_alone_are_too_much_no_pair_and_no_size_is_traced(monkeypatch):
    traced = []

    def token_counts(config, job, platform):
        traced.append(job)
        return simulate(config, job, platform)

    monkeypatch.setattr("vrambudget.planning.advice.simulate", token_counts)
    advice = vrambudget.advise("gpt2", batch=4, block=1024, gpu="0.2GiB")
    assert not any(option.fits for option in advice.options)
    assert len(traced) == len(set(traced)) <= len(CHANGES)


def test_pairs_come_where_one_change_is_not_enough():
    advice = vrambudget.advise("gpt2-large", batch=1, block=1024, gpu="6GB")
    singles = [option for option in advice.options if len(option.words) == 1]
    pairs = [option for option in advice.options if len(option.words) == 2]
    assert not any(option.fits for option in singles)
    assert pairs
    assert all(option.fits for option in pairs)
    assert advice.options == (*singles, *pairs)
    assert {words for option in pairs for words in option.words} <= {
        words for option in singles for words in option.words
    }


def test_no_pair_is_tried_where_one_change_is_enough():
    advice = vrambudget.advise("nanogpt", batch=64, gpu="12GB")
    assert any(option.fits for option in advice.options)
    assert all(len(option.words) == 1 for option in advice.options)


def test_what_is_done_already_is_not_advised():
    advice = vrambudget.advise(
        "gpt2", batch=1, block=64, optimizer_impl="fused", keep_outputs=False, checkpointing="full"
    )
    told = " ".join(option.options for option in advice.options)
    for done in ("fused", "discard", "checkpointing", "sdpa", "--batch"):
        assert done not in told


def test_older_cards_are_not_told_to_take_bfloat16():
    options = vrambudget.advise("gpt2", batch=16, precision="fp32", gpu="t4").options
    told = [option.options for option in options if "--precision" in option.options]
    assert told == ["--precision amp-fp16"]


def test_the_largest_tensors_at_the_peak_are_named():
    largest = vrambudget.advise("nanogpt", batch=64, block=1024, gpu="12GB").largest
    assert [(held.description, held.bytes) for held in largest[:3]] == [
        ("logits as float32, 64·1024 x 50304", 64 * 1024 * 50304 * 4),
        ("gradient of the logits as float32, 64·1024 x 50304", 64 * 1024 * 50304 * 4),
        ("logits as bfloat16, 64·1024 x 50304", 64 * 1024 * 50304 * 2),
    ]
    assert largest[4].count == 12
    assert largest[4].module == "transformer.h.*.mlp.c_fc"
    assert largest[4].description == "activation of mm as bfloat16, 64·1024 x 3072"


def test_a_weight_as_wide_as_the_batch_has_rows_is_not_written_as_a_product():
    square = {"model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 2, "vocab_size": 1000}
    for batch in (1, 2):
        job = {"batch": batch, "block": 128 // batch, "precision": "fp32", "optimizer": "sgd"}
        told = str(vrambudget.advise(square, gpu="1GiB", **job))
        assert "weight as float32, 1000 x 128, in transformer.wte" in told
        assert f"{batch}·{128 // batch}" not in told


def test_what_leaves_less_than_the_context_may_take_is_tight():
    option = Option("--block 64", ("shorter",), Cost.DATA, 25 * 2**30, 0, fits=True)
    for capacity, word in ((24, "tight"), (26, "yes"), (None, "-")):
        capacity_bytes = None if capacity is None else capacity * 2**30
        fits = None if capacity is None else True
        advice = Advice(False, 30, (replace(option, fits=fits),), (), capacity_bytes)
        assert f" {word} " in render_advice(advice)


@each_job
def test_the_report_has_a_line_for_each_option_within_80_columns(job):
    advice = advice_for(job)
    for markdown in (False, True):
        lines = render_advice(advice, markdown=markdown).splitlines()
        assert sum("--" in line for line in lines[2:]) == len(advice.options)
        assert markdown or max(map(len, lines)) <= 80


def test_the_next_step_is_the_cheapest_that_is_enough():
    told = next_step(vrambudget.advise("nanogpt", batch=64, block=1024, gpu="12GB"))
    assert told.startswith("--batch 8 --grad-accum 8 makes it fit: ")
    hopeless = vrambudget.advise("llama-3.1-70b", batch=1, block=16, precision="bf16", gpu="6GB")
    assert "`vrambudget plan llama-3.1-70b --gpu" in next_step(hopeless)


def test_the_command_advises_where_it_does_not_fit_and_where_it_is_asked(capsys):
    main(["gpt2", "--batch", "1", "--block", "64", "--gpu", "12GB"])
    assert "what would help" not in capsys.readouterr().out
    for words in (["--batch", "1", "--advise"], ["--batch", "600"]):
        main(["gpt2", "--block", "64", "--gpu", "12GB", *words])
        assert "what would help" in capsys.readouterr().out
    main(["gpt2", "--batch", "1", "--block", "64", "--advise", "--format", "json"])
    advised = json.loads(capsys.readouterr().out)["advice"]
    assert {option["cost"] for option in advised["options"]} <= set(COSTS)


def test_every_change_is_advised_somewhere():
    jobs = [
        *JOBS.values(),
        ("gpt2", {"batch": 8, "precision": "fp32", "gpu": "24GB", "block": 512}),
        ("qwen2.5-0.5b", {"mode": "generate", "prompt": 8192, "new": 4, "gpu": "4GB"}),
    ]
    told = {
        w for m, f in jobs for option in vrambudget.advise(m, **f).options for w in option.words
    }
    assert told == {change.words for change in CHANGES}


def test_a_huge_batch_is_searched_in_few_steps_and_accumulated_within_limits():
    advice = vrambudget.advise("gpt2", batch=2**20, block=16, gpu="12GB")
    (option,) = (o for o in advice.options if "--grad-accum" in o.options)
    batch, times = (int(word) for word in option.options.split() if word.isdigit())
    assert batch * times == 2**20
    assert option.fits
    advice = vrambudget.advise("gpt2", batch=10**6, block=16, mode="eval", gpu="12GB")
    (option,) = (o for o in advice.options if "--batch" in o.options)
    assert option.fits


def test_advice_shows_itself_as_text_as_html_and_as_records():
    advised = vrambudget.advise("gpt2", batch=64, block=64, gpu="4GB")
    assert str(advised).startswith("what would help")
    assert "<h2>What would help</h2>" in advised._repr_html_()
    assert [each["options"] for each in advised.records()] == [
        option.options for option in advised.options
    ]


@pytest.fixture
def two_processes(monkeypatch):
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    monkeypatch.setattr(forked, "cpu_count", lambda: 2)
    monkeypatch.setattr(forked, "may_fork", lambda: True)


@pytest.mark.usefixtures("two_processes")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@each_job
def test_other_processes_find_what_one_does(job, monkeypatch):
    model, fields = JOBS[job]
    traced, alone = trace_job(resolve(model, **fields)), advice_for(job)
    brought, bring = [], forked.forked

    def bringing(pieces):
        brought.extend(bring(pieces))
        return brought

    monkeypatch.setattr(planning_advice, "forked", bringing)
    assert advise_on(traced, forks=True) == alone
    assert brought


@pytest.mark.usefixtures("two_processes")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_a_lost_process_had_to_do_is_missing():
    parent = os.getpid()

    def piece():
        if os.getpid() != parent:
            os._exit(3)
        return "done"

    assert set(forked.forked([piece] * 50)) == {"done"}


def test_a_process_with_one_cpu_shares_nothing(monkeypatch):
    monkeypatch.setattr(forked, "cpu_count", lambda: 1)
    assert forked.forked([os.getpid] * 2) == []


def test_where_lengths_change_each_change_is_tried_on_the_draw_that_was_counted(capsys):
    fields = {"batch": 4, "block": "200:260", "steps": 4, "gpu": "t4"}
    traced = trace_job(resolve("distilgpt2", **fields))
    draw = traced.budget.job["draw"]
    advice = advise_on(traced)
    assert traced.scenario.job.draw is None
    for option in advice.options:
        _, after = changed("distilgpt2", {**fields, "draw": draw}, option.options, capsys)
        assert after["device"]["peak_bytes"] == option.device_peak_bytes


def test_where_lengths_change_the_longest_is_shortened_and_no_further_than_the_shortest():
    advice = vrambudget.advise("distilgpt2", batch=4, block="200:1000", steps=4, gpu="t4")
    (shorter,) = [o.options for o in advice.options if o.cost is Cost.DATA]
    assert shorter == "--block 200:448"  # half of the longest, in steps of 64
    advice = vrambudget.advise("distilgpt2", batch=4, block="600:1000", steps=4, gpu="t4")
    assert "--block 600:640" in {option.options for option in advice.options}


def test_a_recipe_that_was_not_recorded_ends_no_report(monkeypatch, capsys):
    """MiniMax M2 was recorded without padded rows, which TRL's loops have."""
    monkeypatch.setattr("vrambudget.traced.config.NEEDED", ("no_torch_here",))
    assert main(["minimax-m2.5", "--gpu", "80GB"]) == DOES_NOT_FIT
    assert not capsys.readouterr().err
