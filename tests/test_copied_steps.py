"""Decoding steps whose layers are copied from one another, against steps traced over all."""

import pytest

from vrambudget.engine.identical_layers import Layer
from vrambudget.inference.skipping import StretchFinder, TracedStep, traced_step
from vrambudget.ops.attention.flash import KeySplit
from vrambudget.ops.reduce_buffers import SumSplit
from vrambudget.planning.longest import longest_answer
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.steps import Pattern

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 9,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 2000,
}
GPT2 = {"model_type": "gpt2", "n_layer": 8}
GEMMA2 = {**LLAMA, "model_type": "gemma2", "num_hidden_layers": 8, "sliding_window": 64}
GEMMA3 = {**GEMMA2, "model_type": "gemma3_text", "num_hidden_layers": 11, "head_dim": 64}
GEMMA3 |= {
    "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 3 + ["sliding_attention"] * 2
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4}
JOBS = [
    pytest.param(LLAMA, {}, id="llama"),
    pytest.param(LLAMA, {"padding": "left", "batch": 3}, id="padded"),
    pytest.param(LLAMA, {"num_beams": 3}, id="beams"),
    pytest.param(LLAMA, {"cache": "static", "sample": True}, id="static"),
    pytest.param(LLAMA, {"cache": "offloaded"}, id="offloaded"),
    pytest.param(LLAMA, {"cache": "none", "return_scores": True}, id="no cache"),
    pytest.param(LLAMA, {"lora_rank": 4}, id="adapters"),
    pytest.param(LLAMA, {"precision": "amp-bf16"}, id="autocast"),
    pytest.param(LLAMA, {"quant": "nf4"}, id="4 bit"),
    pytest.param(GPT2, {"attention": "eager"}, id="gpt2"),
    pytest.param(GEMMA2, {}, id="two kinds of layers"),
    pytest.param(GEMMA3, {}, id="turns of three layers"),
    pytest.param({**LLAMA, "model_type": "mistral", "sliding_window": 70}, {}, id="window"),
    pytest.param(MIXTRAL, {"batch": 2}, id="experts"),
]


def stretches(model, fields):
    options = {"prompt": 50, "new": 60, **fields}
    scenario = resolve(model, gpu="a100-80gb", mode="generate", **options)
    tape = simulate(scenario.config, scenario.job, scenario.platform).tape
    return [mark.steps.stretches for mark in tape.marks if mark.steps], tape.sizes


@pytest.mark.parametrize(("model", "fields"), JOBS)
def test_copied_layers_of_a_decoding_step_are_as_traced_ones(model, fields, monkeypatch):
    found = stretches(model, fields)
    monkeypatch.setattr("vrambudget.simulate.stack_layers", lambda _: None)
    assert stretches(model, fields) == found


@pytest.mark.parametrize(("model", "traced"), [(LLAMA, 4), (GEMMA2, 7)], ids=["llama", "gemma2"])
def test_a_decoding_step_traces_few_of_its_layers(model, traced, monkeypatch):
    calls, trace = [], Layer.trace
    monkeypatch.setattr(Layer, "trace", lambda *a, **k: calls.append(a[0].number) or trace(*a, **k))
    stretches({**model, "num_hidden_layers": 20}, {"new": 600})

    assert len(calls) == traced * calls.count(0)


SPLITS = [
    pytest.param(lambda step: KeySplit(1, 2, 2, step + 1, 64), id="attention with a cache"),
    pytest.param(lambda step: KeySplit(1, 2, step + 1, step + 1, 64), id="and without"),
    pytest.param(lambda step: SumSplit(60, step + 1, 8, 8), id="a sum"),
]


@pytest.mark.parametrize("split", SPLITS)
def test_steps_that_split_their_work_over_other_blocks_are_foreseen(split):
    traced = []

    def trace(step):
        traced.append(step)
        blocks_of = (0,) if split(step).accumulators else (-1,)
        return TracedStep(Pattern((0, ~0), (), ("op",)), (16,), (split(step),), blocks_of)

    found = list(StretchFinder(trace, 0, aligned=False).stretches(300, 19000))
    sizes = [stretch.sizes[0][0] for stretch in found for _ in range(stretch.count)]
    expected = [16 * max(1, split(step).blocks) for step in range(300, 19001)]
    assert sizes == expected
    assert len(found) > 5
    assert len(traced) <= 6


def test_an_answer_of_a_million_tokens_traces_few_steps(monkeypatch):
    traced = []
    monkeypatch.setattr(
        "vrambudget.inference.generate.traced_step",
        lambda **how: traced.append(1) or traced_step(**how),
    )
    tiny = {**LLAMA, "num_hidden_layers": 2, "max_position_embeddings": 2**21}
    options = {"mode": "generate", "prompt": 1024, "batch": 64}
    _, at_most = longest_answer(resolve(tiny, gpu="80GB", **options))
    assert at_most > 10**6
    assert 0 < len(traced) < 100
