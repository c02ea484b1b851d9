"""Generation: what a step makes and holds, against hand arithmetic; records hold the peaks."""

import json
from pathlib import Path

import pytest

import vrambudget
from vrambudget.budget import Budget
from vrambudget.cli import main
from vrambudget.config.gpus import find_gpu
from vrambudget.config.record import read_records
from vrambudget.engine.context import Platform, recording
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.estimator import estimate_scenario
from vrambudget.ops.cub import sort_floats_bytes
from vrambudget.planning.changes import CHANGES
from vrambudget.planning.longest import longest_answer
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.events import Purpose
from vrambudget.tape.phases import peaks_by_part
from vrambudget.tape.replay import replay, replay_on
from vrambudget.validate import validate

GPU = "a100-80gb"
RECORDS = Path(__file__).parent / "records" / "generation"
REHEARSED = ("quantised_loaded_sampled", "bart", "drawn_again", "drawn_further", "drawn_last")


def tape_of(model, **fields):
    scenario = resolve(model, gpu=GPU, mode="generate", **fields)
    return simulate(scenario.config, scenario.job, scenario.platform).tape


def phases(tape):
    return [mark.phase for mark in tape.marks]


def cached_at(tape, position):
    alive = tape.alive_at(position)
    return sum(tape.sizes[i] for i in alive if tape.purposes[i] is Purpose.KV_CACHE)


def test_a_generation_is_setup_prefill_and_a_pass_for_each_further_token():
    assert phases(tape_of("gpt2", prompt=16, new=3)) == [
        *("setup", "prefill", "step_end"),
        *("decode 1", "decode 2", "step_end"),
    ]
    assert phases(tape_of("gpt2", prompt=16, new=1)) == ["setup", "prefill", "step_end"]


def test_the_cache_grows_by_a_token_in_each_step():
    tape = tape_of("gpt2", prompt=16, new=3, batch=2)
    starts = [mark.position for mark in tape.marks if mark.phase.startswith("decode")]
    token = 2 * 12 * 2 * 768 * 2  # keys and values, layers, rows, width, bytes
    assert [cached_at(tape, start - 1) for start in starts] == [16 * token, 17 * token]


def test_without_a_cache_every_pass_is_over_all_tokens():
    tape = tape_of("gpt2", prompt=16, new=3, cache="none")
    assert Purpose.KV_CACHE not in tape.purposes
    assert [c[0] for c in tape.contents if c and c[0][-1:] == (3 * 768,)][-1] == (18, 3 * 768)


def test_chunks_of_the_prompt_are_passes_of_their_own():
    tape = tape_of("gpt2", prompt=16, new=1, prefill_chunk=6)
    assert phases(tape)[1:4] == ["prefill chunk 1", "prefill chunk 2", "prefill chunk 3"]


def test_no_loss_is_made_and_logits_are_those_of_the_last_token():
    tape = tape_of("gpt2", prompt=64, new=1)
    vocabulary = 50257
    logits = {c[0] for c in tape.contents if c and c[0][-1:] == (vocabulary,)}
    assert logits == {(1, vocabulary)}


def test_weights_are_16_bit_unless_a_precision_is_named():
    assert resolve("gpt2", mode="generate").job.precision == "bf16"
    assert resolve("gpt2", mode="generate", precision="fp32").job.precision == "fp32"
    assert resolve("gpt2").job.precision == "amp-bf16"


def test_prompt_and_answer_must_fit_into_learned_positions():
    with pytest.raises(VramBudgetError, match="prompt and new tokens together are 1025"):
        vrambudget.estimate("gpt2", mode="generate", prompt=1000, new=25)


def test_answers_that_would_all_be_the_same_are_refused():
    with pytest.raises(VramBudgetError, match="num_return is 2; without sample"):
        resolve("gpt2", mode="generate", num_return=2)


def test_generation_with_other_models_is_refused_by_name():
    pytest.importorskip("transformers")
    with pytest.raises(NotModelledError, match="generation with"):
        vrambudget.estimate({"model_type": "bert"}, mode="generate", prompt=8, new=2, gpu=GPU)


T5 = {"model_type": "t5", "num_layers": 6, "num_decoder_layers": 2, "vocab_size": 99}
BART = {"model_type": "bart", "d_model": 64, "vocab_size": 500} | {
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


def test_an_encoder_runs_once_and_its_keys_and_values_stay_as_they_are():
    tape = tape_of(T5, prompt=16, new=4, batch=2)
    starts = [mark.position for mark in tape.marks if mark.phase.startswith("decode")]
    token = 2 * 2 * 2 * 512 * 2  # keys and values, decoder layers, rows, width, bytes
    assert [cached_at(tape, at - 1) for at in starts] == [(16 + k) * token for k in (1, 2, 3)]
    setup = [mark.position for mark in tape.marks if mark.phase in {"setup", "prefill"}]
    encoded = [tape.path_of(e.storage) for e in tape.read(*setup) if e.change > 0]
    assert any(path.startswith("encoder.block.5") for path in encoded)


@pytest.mark.parametrize(
    "fields", [{}, {"num_beams": 3}, {"cache": "none"}, {"cache": "static"}], ids=str
)
@pytest.mark.parametrize("model", [T5, BART], ids=["t5", "bart"])
def test_steps_of_a_decoder_that_are_found_take_what_traced_ones_take(model, fields, monkeypatch):
    found = tape_of(model, prompt=16, new=40, batch=2, **fields)
    monkeypatch.setattr("vrambudget.inference.generate._FEWEST", 1000)
    in_full = tape_of(model, prompt=16, new=40, batch=2, **fields)
    assert any(mark.steps for mark in found.marks)
    assert peaks_by_part(found) == peaks_by_part(in_full)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_static_cache_of_t5_is_two_whole_ones(attention):
    """Rehearsed on a virtual A100, torch 2.11, transformers 5.17: all allocations are equal."""
    job = {"prompt": 4, "new": 7, "batch": 4, "cache": "static", "attention": attention}
    found = vrambudget.estimate("t5-small", mode="generate", gpu="a100-80gb", **job)
    assert found.peak.requested_bytes == 131_375_824
    assert found.peak.allocated_bytes == 132_041_216
    assert found.peak.reserved_bytes == 136_314_880
    # of six layers, keys and values of 7 new tokens and 4 of the encoder's; and two lengths
    assert found.breakdown["KV cache"] == 6 * (2 * (7 + 4) * 4 * 512 * 2 + 2 * 8)


@pytest.mark.parametrize(("cache", "own"), [("dynamic", 12 - 1), ("static", 12)])
def test_bart_keeps_its_own_keys_and_values_and_the_encoders(cache, own):
    """Its static cache has the decoder's layers, more than the encoder's."""
    tape = tape_of(BART, prompt=20, new=12, batch=2, cache=cache)
    last = next(m.position for m in tape.marks if m.phase == "decode 11")
    lengths = 2 * 8 * 3 if cache == "static" else 0
    assert cached_at(tape, last) == 2 * 3 * (own + 20) * 2 * 64 * 2 + lengths


def test_bart_is_made_to_end_with_a_token():
    tape = tape_of(BART, prompt=20, new=4, batch=2)
    marks = [mark.position for mark in tape.marks if mark.phase.startswith("decode")]
    made = [i for i, operation in enumerate(tape.operations) if operation == "full_like"]
    forced = [i for i in made if tape.sizes[i] == 2 * 500 * 4]
    assert len(forced) == 1
    assert tape.events.index(forced[0]) > marks[-1]


@pytest.mark.parametrize(
    ("capability", "rehearsed"),
    [((7, 5), 71_356_415), ((8, 0), 71_307_263), ((8, 9), 71_307_263), ((9, 0), 71_077_887)],
)
def test_floats_are_sorted_in_the_tiles_of_their_gpu(capability, rehearsed):
    """float32 [32, 50257]: keys and values in and out, 32 bytes each item, and CUB's storage."""
    n = 32 * 50257
    with recording(Platform(compute_capability=capability)):
        assert 32 * n + sort_floats_bytes(n) == rehearsed


def test_short_rows_are_sorted_in_place():
    def sorts(vocabulary):
        model = {"model_type": "gpt2", "n_layer": 1, "n_embd": 64, "n_head": 2}
        tape = tape_of(
            {**model, "vocab_size": vocabulary}, prompt=4, new=1, batch=3, sample=True, top_p=0.9
        )
        return [s for s, o in zip(tape.sizes, tape.operations, strict=True) if o == "sort"]

    assert sorts(4096) == [3 * 4096 * 4, 3 * 4096 * 8, 4096 * 8]  # the places of one row
    assert len(sorts(4097)) > 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cache": "offloaded"}, "cache 'offloaded' of an encoder-decoder"),
        ({"cache": "quantized"}, "cache 'quantized' of an encoder-decoder"),
    ],
)
@pytest.mark.parametrize("model", [T5, BART], ids=["t5", "bart"])
def test_caches_that_an_encoder_decoder_cannot_have_are_refused(model, fields, words):
    with pytest.raises(NotModelledError, match=words):
        tape_of(model, prompt=16, new=4, **fields)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_cache_has_no_more_layers_than_the_encoder(cache):
    deeper = {**T5, "num_decoder_layers": 7}
    with pytest.raises(NotModelledError, match="of 7 decoder layers is not modelled: generate"):
        tape_of(deeper, prompt=16, new=4, cache=cache)
    assert tape_of(deeper, prompt=16, new=4, cache="none")


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        (
            {"mode": "generate", "prompt": 8, "new": 2, "block": 64, "optimizer": "sgd"},
            "block, optimizer: not read with mode 'generate', whose lengths are prompt and new",
        ),
        (
            {"mode": "generate", "prompt": 8, "new": 2, "top_p": 0.9},
            "top_p: not read without sample, of which generate warns",
        ),
        ({"block": 8, "prompt": 8}, "prompt: not read with mode 'train'"),
        ({"mode": "forward", "block": 8, "clip": 1.0}, "clip: not read with mode 'forward'"),
    ],
)
def test_an_option_that_the_mode_does_not_read_is_named(fields, note):
    assert note in vrambudget.estimate("gpt2", **fields).warnings


def test_options_that_are_read_are_not_named():
    drawn = {"mode": "generate", "prompt": 8, "new": 2, "sample": True, "top_k": 3}
    told = vrambudget.estimate("gpt2", **drawn, batch=2, optimizer="adamw")
    assert not any("not read" in warning for warning in told.warnings)


def test_the_largest_prompt_of_a_card_is_searched_with_the_answer_as_it_is():
    found = vrambudget.max_block(
        {"model_type": "llama", "num_hidden_layers": 2},
        gpu=find_gpu("12GB"),
        mode="generate",
        prompt=2**14,
        new=4,
    )
    assert found > 2**14


SHORT = [
    pytest.param({"prompt": 20, "new": 40, "batch": 3}, id="greedy"),
    pytest.param({"prompt": 20, "new": 40, "padding": "left"}, id="rows of eight"),
    pytest.param({"prompt": 20, "new": 40, "sample": True, "top_p": 0.9}, id="sampled"),
    pytest.param({"prompt": 20, "new": 30, "cache": "none"}, id="no cache"),
    pytest.param({"prompt": 20, "new": 30, "num_beams": 3}, id="beams"),
    pytest.param({"prompt": 20, "new": 30, "num_beams": 3, "sample": True}, id="drawn beams"),
    pytest.param({"prompt": 20, "new": 30, "precision": "amp-bf16"}, id="autocast"),
    pytest.param({"prompt": 20, "new": 40, "cache": "static"}, id="static"),
    pytest.param({"prompt": 20, "new": 40, "return_scores": True}, id="scores"),
    pytest.param({"prompt": 20, "new": 30, "sample": True, "return_logits": True}, id="logits"),
    pytest.param({"prompt": 200, "new": 40, "batch": 16}, id="large blocks"),
]
QUANTISED = [
    pytest.param({"prompt": 100, "new": 300, "batch": 8, "sample": True}, id="twice in full"),
    pytest.param({"prompt": 600, "new": 150, "prefill_chunk": 200}, id="pieces"),
    pytest.param({"prompt": 9, "new": 140, "cache_bits": 2}, id="2 bit"),
]
WINDOW = {
    "model_type": "mistral",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "vocab_size": 99,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "sliding_window": 32,
}


@pytest.mark.parametrize("model", [{"model_type": "gpt2", "n_layer": 2}, WINDOW], ids=["all", "32"])
@pytest.mark.parametrize("fields", SHORT)
def test_steps_that_are_found_take_what_steps_that_are_traced_take(model, fields, monkeypatch):
    found = tape_of(model, **fields)
    monkeypatch.setattr("vrambudget.inference.generate._FEWEST", 1000)
    in_full = tape_of(model, **fields)

    assert any(mark.steps for mark in found.marks)
    assert not any(mark.steps for mark in in_full.marks)
    assert len(found.events) < len(in_full.events)
    assert peaks_by_part(found) == peaks_by_part(in_full)
    one, other = replay(found), replay(in_full)
    assert one.peak.reserved_bytes == other.peak.reserved_bytes
    assert one.steps == other.steps


@pytest.mark.parametrize("fields", QUANTISED)
def test_steps_of_a_quantised_cache_are_found_between_those_that_quantise(fields, monkeypatch):
    model = {"model_type": "gpt2", "n_layer": 3}
    found = tape_of(model, cache="quantized", **fields)
    monkeypatch.setattr("vrambudget.inference.generate._FEWEST", 1000)
    in_full = tape_of(model, cache="quantized", **fields)
    assert any(mark.steps for mark in found.marks)
    assert peaks_by_part(found) == peaks_by_part(in_full)
    assert replay(found).peak.reserved_bytes == replay(in_full).peak.reserved_bytes


def test_a_quantised_cache_is_codes_a_scale_and_a_shift_for_each_64():
    tape = tape_of("gpt2", prompt=64, new=3, batch=2, cache="quantized")
    starts = [mark.position for mark in tape.marks if mark.phase.startswith("decode")]
    elements = 2 * 64 * 768
    codes = 12 * 2 * (elements // 2 + 2 * elements // 64 * 2)
    in_full = 12 * 2 * 2 * 768 * 2  # a token of two rows
    assert [cached_at(tape, at - 1) for at in starts] == [codes, codes + in_full]


WIDE = {"model_type": "llama", "num_hidden_layers": 12, "num_attention_heads": 8} | {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "vocab_size": 2000,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="greedy"),
        pytest.param({"sample": True, "padding": "left"}, id="padded"),
        pytest.param({"cache": "static"}, id="static"),
        pytest.param({"num_beams": 2, "batch": 800}, id="beams"),
    ],
)
def test_the_longest_answer_fits_and_one_token_more_does_not(fields):
    job = {"prompt": 60, "new": 8, "batch": 1500, "mode": "generate", **fields}
    scenario = resolve(WIDE, gpu="8GB", **job)
    new, at_most = longest_answer(scenario)
    assert at_most == new > 20
    fit = [
        estimate_scenario(resolve(WIDE, gpu="8GB", **{**job, "new": n})).fits
        for n in (new, new + 1)
    ]
    assert fit == [True, False]


def test_an_answer_that_never_fills_the_card_is_replayed_once(monkeypatch):
    monkeypatch.setattr("vrambudget.planning.longest.Search", None)
    scenario = resolve("gpt2", gpu="8GB", mode="generate", prompt=1000, new=4)
    assert longest_answer(scenario) == (24, 24)  # all positions


def test_where_a_replay_would_take_long_its_bounds_are_said(monkeypatch, tmp_path, capsys):
    options = {"mode": "generate", "prompt": 60, "batch": 400, "gpu": "8GB"}
    exact, _ = longest_answer(resolve(WIDE, **options))
    monkeypatch.setattr("vrambudget.full_length._REPLAYED", 0)
    new, at_most = longest_answer(resolve(WIDE, **options))
    assert 0.8 * exact < new < exact < at_most < 1.2 * exact
    (tmp_path / "config.json").write_text(json.dumps(WIDE))
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    assert main(["fit", str(tmp_path), *words, "--longest-new", "--margin", "0B"]) == 0
    assert f"most new tokens that fit: {new:,} to {at_most:,} after" in capsys.readouterr().out


def test_a_report_says_when_the_card_is_full():
    options = {"gpu": "8GB", "mode": "generate", "prompt": 60, "batch": 1500}
    budget = vrambudget.estimate(WIDE, new=20, **options)
    assert budget.full_at is not None
    assert budget.full_at.is_exact
    longest, _ = longest_answer(resolve(WIDE, new=20, **options))
    assert budget.full_at.tokens == 60 + longest
    assert f"the GPU is full at {60 + longest:,} tokens of a row" in str(budget)
    assert Budget.from_json(budget.to_json()) == budget
    too_long = vrambudget.estimate(WIDE, new=longest + 50, **options)
    assert not too_long.fits
    assert too_long.full_at == budget.full_at


def test_a_card_that_is_full_far_off_is_said_to_be_so_at_the_latest(capsys):
    words = ["gpt2", "--mode", "generate", "--prompt", "16", "--new", "4", "--gpu", "a100-80gb"]
    job = {"gpu": "a100-80gb", "mode": "generate", "new": 9}
    assert "tokens of a row at the latest" in str(vrambudget.estimate(WIDE, batch=100, **job))
    assert vrambudget.estimate(WIDE, **job).full_at is None  # no answer is so long
    assert main(words) == 0
    assert "the GPU is full" not in capsys.readouterr().out  # its positions end before


def test_how_long_an_answer_may_be_is_a_command(capsys):
    words = [
        "fit",
        "gpt2",
        "--mode",
        "generate",
        "--prompt",
        "16",
        "--gpu",
        "8GB",
        "--batch",
        "256",
    ]
    assert main([*words, "--longest-new"]) == 0
    assert "most new tokens that fit: " in capsys.readouterr().out
    assert main([*words, "--longest-new", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == 16
    with pytest.raises(VramBudgetError, match="has no new tokens"):
        longest_answer(resolve("gpt2", gpu="8GB"))


def test_a_cache_quantised_by_hqq_is_refused_by_name():
    with pytest.raises(VramBudgetError, match="quantised by HQQ is not modelled"):
        resolve("gpt2", cache_backend="hqq")


def test_a_quantised_cache_refuses_what_generate_does():
    with pytest.raises(VramBudgetError, match="layers with a window: generate refuses it"):
        tape_of(WINDOW, prompt=8, new=2, cache="quantized")
    odd = {"model_type": "gpt2", "n_embd": 60, "n_head": 3, "n_layer": 1}
    with pytest.raises(VramBudgetError, match="groups of 64, and 420 elements"):
        tape_of(odd, prompt=7, new=2, cache="quantized")
    with pytest.raises(VramBudgetError, match="reorders its newest tokens alone"):
        resolve("gpt2", mode="generate", num_beams=2, cache="quantized")


def test_a_card_that_is_full_in_a_step_between_says_which():
    scenario = resolve("gpt2", gpu=GPU, mode="generate", prompt=16, new=300, batch=64)
    tape = simulate(scenario.config, scenario.job, scenario.platform).tape
    end = replay(tape).peak.requested_bytes
    full = replay_on(tape, end * 4 // 5)
    assert full is not None
    kind, number = full.phase.split()
    assert kind == "decode"
    assert 1 < int(number) < 299
    assert full.operation


def test_a_peak_between_the_traced_steps_is_shown_in_its_step():
    budget = vrambudget.estimate(WINDOW, gpu=GPU, mode="generate", prompt=1, new=60, batch=64)
    assert budget.check().peak.phase.startswith(("decode", "prefill"))


def test_a_forward_pass_has_no_labels_and_no_loss():
    tape = tape_of_forward("gpt2", block=64, batch=2)
    assert {c[0] for c in tape.contents if c and c[0][-1:] == (50257,)} == {(128, 50257)}
    assert cached_at(tape, len(tape.events) - 1) == 2 * 12 * 2 * 64 * 768 * 2


def test_logits_may_be_those_of_the_last_tokens():
    tape = tape_of_forward("gpt2", block=64, batch=2, logits_to_keep=1)
    assert (2, 50257) in {c[0] for c in tape.contents if c}
    assert (128, 50257) not in {c[0] for c in tape.contents if c}


def test_copies_of_an_earlier_pass_in_one_region_are_freed_once():
    tape = tape_of_forward("bert-base-uncased", task="embed", block=32, precision="amp-bf16")
    freed = [~event for event in tape.events if event < 0]
    assert len(freed) == len(set(freed))


def tape_of_forward(model, **fields):
    scenario = resolve(model, gpu=GPU, mode="forward", **fields)
    return simulate(scenario.config, scenario.job, scenario.platform).tape


def test_beams_are_rows_of_their_own_from_the_prompt_on():
    tape = tape_of("gpt2", prompt=16, new=2, batch=3, num_beams=4)
    start = next(mark.position for mark in tape.marks if mark.phase == "decode 1")
    assert cached_at(tape, start - 1) == 16 * 2 * 12 * 12 * 768 * 2


def test_sampled_beams_draw_their_candidates_from_a_softmax():
    shapes = {}
    for sample in (True, False):
        tape = tape_of("gpt2", prompt=16, new=2, batch=3, num_beams=4, sample=sample)
        shapes[sample] = [c[0] for c in tape.contents if c].count((3, 4 * 50257))
    assert shapes[True] - shapes[False] == 2 * 2  # probabilities and draws of each step


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(["--new", "1000", "--batch", "8"], "next: --expandable-segments", id="holes"),
        pytest.param(["--new", "4"], "next: `vrambudget fit`", id="none"),
    ],
)
def test_what_comes_next_is_told_from_the_holes_that_a_growing_cache_leaves(options, words, capsys):
    assert main(["gpt2", "--mode", "generate", "--prompt", "16", "--gpu", "12GB", *options]) == 0
    assert words in capsys.readouterr().out


def test_a_static_cache_has_room_for_all_tokens_from_the_prompt_on():
    tape = tape_of("gpt2", prompt=16, new=5, batch=2, cache="static")
    start = next(mark.position for mark in tape.marks if mark.phase == "decode 1")
    room = 16 + 5 - 1  # the last token is not run through the model
    lengths = 12 * 8  # how many tokens each layer has, on the device
    assert cached_at(tape, start - 1) == room * 2 * 12 * 2 * 768 * 2 + lengths


def test_returned_scores_stay_to_the_end():
    tape, bare = (tape_of("gpt2", prompt=16, new=20, return_scores=kept) for kept in (True, False))
    last = [mark.position for mark in tape.marks][-1]
    scores = 20 * 50257 * 4
    alive = sum(tape.sizes[i] for i in tape.alive_at(last - 1))
    without = sum(bare.sizes[i] for i in bare.alive_at(bare.marks[-1].position - 1))
    cache = 12 * 2 * (16 + 19) * 768 * 2  # it is returned, too
    assert alive - without == scores + cache


def test_a_second_call_begins_beside_the_first_answer():
    tape = tape_of("gpt2", prompt=16, new=3, calls=2)
    assert phases(tape).count("prefill") == 2
    second = [mark.position for mark in tape.marks if mark.phase == "setup"][-1]
    answer = (16 + 3) * 8
    assert answer in {tape.sizes[i] for i in tape.alive_at(second - 1)}


def test_a_model_without_a_head_makes_hidden_states_and_no_logits():
    tape = tape_of_forward("bert-base-uncased", task="embed", block=32, batch=2, pool="mean")
    shapes = {c[0] for c in tape.contents if c}
    assert (2, 32, 768) in shapes
    assert not {shape for shape in shapes if shape[-1:] == (30522,)}


def test_a_forward_pass_with_a_graph_keeps_what_backward_would_need():
    kept, dropped = (
        estimate_forward("gpt2", block=256, batch=4, with_grad=grad) for grad in (True, False)
    )
    assert kept.peak.requested_bytes > 2 * dropped.peak.requested_bytes


def estimate_forward(model, **fields):
    return vrambudget.estimate(model, gpu=GPU, mode="forward", **fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"mode": "eval", "task": "embed"}, "task is 'embed'", id="evaluation"),
        pytest.param({"loop": "trainer", "task": "embed"}, "a script's own", id="Trainer"),
        pytest.param({"mode": "forward", "pool": "mean"}, "pool is 'mean'", id="no embeddings"),
        pytest.param({"mode": "generate", "with_grad": True}, "with_grad", id="no forward"),
        pytest.param(
            {"mode": "forward", "task": "embed", "pool": "mean", "attention_mask": "none"},
            "reads the attention mask",
            id="no mask",
        ),
        pytest.param({"mode": "generate", "calls": 2, "num_beams": 2}, "calls with", id="beams"),
    ],
)
def test_what_does_not_go_together_is_refused(fields, words):
    with pytest.raises(VramBudgetError, match=words):
        resolve("gpt2", **fields)


def test_an_offloaded_cache_has_one_layer_on_the_device_and_the_next_one():
    tape = tape_of({"model_type": "gpt2", "n_layer": 6}, prompt=64, new=4, cache="offloaded")
    token = 2 * 768 * 2  # keys and values of one layer
    starts = [mark.position for mark in tape.marks if mark.phase.startswith("decode")]
    assert [cached_at(tape, at - 1) for at in starts] == [(64 + k) * token for k in range(3)]
    fetched = {e.stream for e in tape.read() if e.change > 0 and e.stream}
    assert fetched == {1}


def test_a_static_cache_under_autocast_is_refused_where_generate_fails():
    model = {"model_type": "llama", "num_hidden_layers": 2, "vocab_size": 99}
    with pytest.raises(NotModelledError, match="static cache takes values of"):
        tape_of(model, prompt=8, new=2, cache="static", precision="amp-bf16")


def test_a_generation_that_does_not_fit_is_told_what_would_help(capsys):
    words = ["--mode", "generate", "--prompt", "900", "--new", "4", "--batch", "200"]
    assert main(["gpt2", *words, "--gpu", "8GB"]) == 1
    out = capsys.readouterr().out
    assert "next: --batch" in out
    assert "largest tensors at the peak" in out  # the cache is among what is looked at


def test_a_long_prompt_may_run_in_pieces():
    scenario = resolve(
        {"model_type": "llama", "num_hidden_layers": 2, "vocab_size": 99},
        gpu="8GB",
        mode="generate",
        prompt=65536,
        new=2,
    )
    [chunked] = [c for c in CHANGES if "piece by piece" in c.words]
    smaller = chunked.apply(scenario, lambda *_: None)
    assert smaller is not None
    assert smaller.job.prefill_chunk == 1024
    peaks = [estimate_scenario(each).peak.requested_bytes for each in (smaller, scenario)]
    assert peaks[0] < peaks[1]


def test_a_mean_of_hidden_states_has_the_mask_that_it_divides_by():
    assert resolve("gpt2", mode="forward", task="embed", pool="mean").job.attention_mask == "ones"


def test_weights_that_are_cast_on_the_gpu_peak_while_they_are_loaded():
    options = {"mode": "generate", "prompt": 16, "new": 2, "precision": "fp16", "gpu": GPU}
    budget = vrambudget.estimate("gpt2", load="to-half", **options)
    assert budget.peak.phase == "loading"
    weights, largest = 124_439_808 * 4, 50257 * 768 * 2
    assert budget.peak.requested_bytes == weights + largest
    assert "the peak is in loading, to" in str(budget)


def test_a_device_map_leaves_one_segment_for_all_weights():
    options = {"mode": "generate", "prompt": 16, "new": 2, "gpu": GPU}
    mapped, moved = (vrambudget.estimate("gpt2", load=how, **options) for how in LOADS)
    assert mapped.peak.requested_bytes == moved.peak.requested_bytes
    assert mapped.peak.reserved_bytes < moved.peak.reserved_bytes


LOADS = ("device-map", "to")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"load": "to-half", "precision": "fp32"}, "the weights are fp32", id="fp32"),
        pytest.param({"load": "to", "quant": "nf4"}, "quant says how weights", id="4 bit"),
    ],
)
def test_ways_of_loading_that_do_not_go_together_are_refused(fields, words):
    with pytest.raises(VramBudgetError, match=words):
        resolve("gpt2", mode="generate", **fields)


def test_experts_through_a_device_map_are_refused_by_name():
    with pytest.raises(NotModelledError, match="its experts are stacked"):
        tape_of({"model_type": "mixtral", "num_hidden_layers": 1}, prompt=8, load="device-map")


@pytest.mark.parametrize(
    "record",
    [record for name in REHEARSED for record in read_records(RECORDS / f"{name}.jsonl")],
    ids=lambda record: record["id"],
)
def test_caches_in_few_bits_ways_of_loading_bart_and_drawn_jobs_take_what_was_rehearsed(record):
    (check,) = validate([record])
    assert check.problem is None
    assert check.predicted == check.measured
